"""Writing keys and values into their pools."""

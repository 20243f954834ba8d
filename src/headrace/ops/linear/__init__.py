"""Linear maps."""

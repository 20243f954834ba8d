"""Root-mean-square and layer norms."""

"""Causal attention over paged keys and values."""

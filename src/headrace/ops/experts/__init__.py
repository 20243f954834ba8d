"""Gated feed-forward experts."""

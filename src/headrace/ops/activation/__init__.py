"""Elementwise gates around the mixers."""

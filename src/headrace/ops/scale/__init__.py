"""Multipliers: of a whole tensor, of its rows, and by position."""

"""Rotary position embedding."""

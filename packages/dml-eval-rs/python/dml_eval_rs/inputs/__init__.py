"""Checks and conversions of arrays from any library, to be passed to the core."""

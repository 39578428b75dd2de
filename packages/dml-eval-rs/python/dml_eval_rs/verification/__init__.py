"""Verification: pairs of items above and below a threshold."""

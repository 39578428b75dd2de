"""Verification: how well a threshold accepts or rejects pairs of items."""

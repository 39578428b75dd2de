"""Ranks: the processes that train together."""

"""Exact search, of embeddings and of binary codes."""

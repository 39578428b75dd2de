"""Exact search in embeddings and binary codes."""

"""Evaluation and search of embeddings that lie in shards, with tasks for any kind of worker.

docs/internals/shards.md of the repository explains the division into tasks.
"""

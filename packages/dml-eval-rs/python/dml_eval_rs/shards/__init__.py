"""Evaluation and search for embeddings in shards, by tasks that any kind of worker can run.

To see how work is divided into tasks, read docs/internals/shards.md in the repository.
"""

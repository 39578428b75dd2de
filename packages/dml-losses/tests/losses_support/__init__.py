"""Slow references and programs of ranks, for the tests of dml-losses.

Pytest's `pythonpath` in the root pyproject.toml makes them importable.
"""

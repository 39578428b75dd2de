"""Code that the trainer's tests share; pytest's `pythonpath` in the root pyproject.toml makes it
importable.
"""

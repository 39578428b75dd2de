"""Code that the evaluator's tests share; pytest's `pythonpath` in the root pyproject.toml makes it
importable.
"""

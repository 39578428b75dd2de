"""Code that the tests of dml-core share; pytest's `pythonpath` in the root pyproject.toml makes it importable."""

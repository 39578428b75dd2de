"""Recipes: tables, loading and checking, and the bundled recipes."""

"""Recipes: tables, loading, checking, and the bundled ones."""

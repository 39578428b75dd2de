"""Train an embedding from a recipe, measure it exactly, and look at it: the `dml` command and its parts."""

from __future__ import annotations

__version__ = "0.1.0"

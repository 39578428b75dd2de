"""Train embeddings and use them from Python, with a function for each `dml` command.

    import dml_train

    recipe = dml_train.load_recipe("glyphs-tiny", {"training.steps": 20})
    run = dml_train.train(recipe, "runs/tiny")
    model = dml_train.open_model(run.path)

A name is imported when it is first used, so that importing the package stays fast. `__init__.pyi` lists the names; see
docs/reference/python.md in the repository for explanations and examples.
"""

from __future__ import annotations

import ast
import importlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

__version__ = version("dml-train")

_TABLE = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {
    alias.name: node.module
    for node in _TABLE.body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})

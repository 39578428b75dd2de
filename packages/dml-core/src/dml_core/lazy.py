"""Import a package's public names when they are first used, so that importing the package stays
fast.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make ``__getattr__``, ``__dir__`` and ``__all__`` of a package from the imports in
    ``__init__.pyi``.

    Args:
        package, file: ``__name__`` and ``__file__`` of the package.
    """
    table = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in table.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    names = ["__version__", *homes]

    def import_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, name_there = homes[name]
        value = getattr(import_module(module), name_there)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return import_name, list_names, names

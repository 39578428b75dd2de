"""Imports that import-linter can't see: modules of the evaluator import modules, never names of its package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "packages" / "dml-eval-rs" / "python" / "dml_eval_rs"
MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_module_of_the_evaluator_imports_through_the_package(module: Path) -> None:
    through = [
        f"line {node.lineno}: from {node.module} import {', '.join(alias.name for alias in node.names)}"
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE.name
    ]
    assert not through

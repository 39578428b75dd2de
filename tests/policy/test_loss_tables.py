"""The tables of losses on two pages are what their command writes from the kept runs."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/losses"))
    return importlib.import_module("loss_tables")


@pytest.mark.parametrize("name", ["han-characters.md", "pictures.md"])
def test_a_table_is_what_the_kept_runs_say(tables, name):
    page = tables.GUIDE / name
    assert page.read_text(encoding="utf-8") == tables.with_table(page, tables.Records()), (
        f"docs/guide/{name} is older than its records; run 'python benchmarks/losses/loss_tables.py'"
    )

"""Property tests try the same examples in every process, whatever it has done before."""

from __future__ import annotations

import importlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn() -> list[str]:
    seen = []

    @given(st.integers(), st.floats(), st.text())
    def look(whole, real, words):
        seen.append(repr((whole, real, words)))

    look()
    return seen


@pytest.mark.skipif(not settings.default.derandomize, reason="a search is for other examples each time")
def test_examples_do_not_depend_on_what_other_tests_have_loaded(tmp_path, monkeypatch):
    before = drawn()
    assert drawn() == before
    (tmp_path / "dml_loaded_meanwhile.py").write_text(
        "WORDS, NUMBERS = ['some', 'words'], [123456.75, 98765]"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("dml_loaded_meanwhile")
    assert drawn() == before

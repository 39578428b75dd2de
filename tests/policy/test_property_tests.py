"""Property tests try the same examples in every process, whatever it ran before."""

from __future__ import annotations

import importlib

import hypothesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

without_search = pytest.mark.skipif(
    not settings.default.derandomize, reason="a search draws other examples each time"
)


def draw_examples() -> list[str]:
    seen = []

    @given(st.integers(), st.floats(), st.text())
    def record(whole, real, words):
        seen.append(repr((whole, real, words)))

    record()
    return seen


@without_search
def test_hypothesis_still_has_the_private_names_that_the_root_conftest_replaces():
    replaced = "hypothesis.internal.conjecture.providers"
    message = (
        f"hypothesis {hypothesis.__version__} lacks {replaced}._get_local_constants or Constants, so examples depend "
        "on loaded modules; replace _get_local_constants' successor in pytest_sessionstart of the root conftest.py"
    )
    try:
        providers = importlib.import_module(replaced)
    except ImportError:
        pytest.fail(message)
    no_constants = getattr(providers, "Constants", None)
    assert no_constants is not None, message
    assert getattr(providers, "_get_local_constants", None) is no_constants, message


@without_search
def test_examples_do_not_depend_on_what_other_tests_have_loaded(tmp_path, monkeypatch):
    before = draw_examples()
    assert draw_examples() == before
    (tmp_path / "dml_loaded_meanwhile.py").write_text(
        "WORDS, NUMBERS = ['some', 'words'], [123456.75, 98765]"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("dml_loaded_meanwhile")
    assert draw_examples() == before

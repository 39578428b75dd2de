"""The hooks' docstrings and the plugin guide state the context of each kind as `CONTEXT` does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dml_core import CONTEXT, hookspecs

(GUIDE,) = (Path(__file__).parents[2] / "docs").glob("**/plugins.md")


@pytest.mark.parametrize("kind", CONTEXT)
def test_the_hooks_docstring_and_the_guide_state_the_context_of_a_kind(kind):
    docstring = getattr(hookspecs, f"dml_{kind}").__doc__
    (stated,) = re.findall(r"Context: (.*?)\.$", docstring, flags=re.MULTILINE)
    assert tuple(re.sub(r" \(.*?\)", "", stated).split(", ")) == CONTEXT[kind]
    text = GUIDE.read_text(encoding="utf-8")
    section = re.search(rf"^### `dml_{kind}`\n(.*?)^##", text, flags=re.DOTALL | re.MULTILINE)[1]
    (sentence,) = re.findall(r"Context: (.*?)\.\s", section, flags=re.DOTALL)
    assert tuple(re.findall(r"`(\w+)`", sentence)) == CONTEXT[kind]

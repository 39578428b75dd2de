"""Hooks must have a heading in the plugin guide, a docstring and a test; guide and docstring state
the context.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dml_core import CONTEXT, KINDS, hookspecs

ROOT = Path(__file__).parents[2]
HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("dml_"))
GUIDE = (ROOT / "docs/guide/plugins.md").read_text(encoding="utf-8")
TESTS = [
    path.read_text(encoding="utf-8")
    for folder in (ROOT / "packages", ROOT / "tests", ROOT / "examples")
    for path in folder.rglob("test_*.py")
    if path != Path(__file__)
]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_has_a_heading_in_the_guide_a_docstring_and_a_test(hook):
    assert sorted(re.findall(r"^### `(dml_\w+)`$", GUIDE, flags=re.MULTILINE)) == HOOKS
    assert (getattr(hookspecs, hook).__doc__ or "").strip()
    # The registry's tests implement `dml_{kind}` for all kinds of components.
    kinds = {"dml_" + kind for kind in KINDS}
    assert hook in kinds or any(re.search(rf"\b{hook}\b", text) for text in TESTS)


@pytest.mark.parametrize("kind", CONTEXT)
def test_the_hooks_docstring_and_the_guide_state_the_context_of_a_kind(kind):
    docstring = getattr(hookspecs, f"dml_{kind}").__doc__
    (stated,) = re.findall(r"Context: (.*?)\.$", docstring, flags=re.MULTILINE)
    assert tuple(re.sub(r" \(.*?\)", "", stated).split(", ")) == CONTEXT[kind]
    section = re.search(rf"^### `dml_{kind}`\n(.*?)^##", GUIDE, flags=re.DOTALL | re.MULTILINE)[1]
    (sentence,) = re.findall(r"Context: (.*?)\.\s", section, flags=re.DOTALL)
    assert tuple(re.findall(r"`(\w+)`", sentence)) == CONTEXT[kind]

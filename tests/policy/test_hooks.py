"""Every hook has a heading in the plugin guide, a docstring, and a test that calls it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dml_core import hookspecs

ROOT = Path(__file__).parents[2]
HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("dml_"))
GUIDE = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
TESTS = [
    path.read_text(encoding="utf-8")
    for folder in (ROOT / "packages", ROOT / "tests", ROOT / "examples")
    for path in folder.rglob("test_*.py")
    if path != Path(__file__)
]


def test_there_are_hooks_to_check():
    assert "dml_losses" in HOOKS


@pytest.mark.parametrize("hook", HOOKS)
def test_the_plugin_guide_has_a_heading_for_the_hook(hook):
    assert re.search(rf"^### `{hook}`$", GUIDE, flags=re.MULTILINE)


@pytest.mark.parametrize("hook", HOOKS)
def test_the_hook_has_a_docstring(hook):
    assert (getattr(hookspecs, hook).__doc__ or "").strip()


@pytest.mark.parametrize("hook", HOOKS)
def test_a_test_implements_the_hook(hook):
    # `dml_{kind}` over every kind is how the registry's tests implement the hooks that bring components.
    kinds = {"dml_" + kind for kind in __import__("dml_core").KINDS}
    assert hook in kinds or any(re.search(rf"\b{hook}\b", text) for text in TESTS), (
        f"no test implements {hook}"
    )


def test_the_guide_has_no_heading_for_a_hook_that_is_gone():
    assert sorted(re.findall(r"^### `(dml_\w+)`$", GUIDE, flags=re.MULTILINE)) == HOOKS

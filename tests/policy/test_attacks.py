"""The page of attacks names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "attacks.md"


def test_every_test_that_the_page_of_attacks_names_exists():
    sources = [
        *ROOT.glob("packages/*/tests/test_*.py"),
        *ROOT.glob("tests/*/test_*.py"),
        *ROOT.glob("packages/dml-core/src/dml_core/testing/*.py"),
    ]
    defined = set(
        re.findall(r"def (test_\w+)\(", "".join(path.read_text(encoding="utf-8") for path in sources))
    )
    named = re.findall(
        r"`(?:[\w.-]+/tests/|tests/\w+/)?(test_\w+(?:\.py)?)`", PAGE.read_text(encoding="utf-8")
    )
    assert len(named) > 30
    assert set(named) <= defined | {path.name for path in sources}

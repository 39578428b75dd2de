"""Every relative link in every page leads to a file, and every heading that is linked exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIPPED = {"target", "runs", "dist", "node_modules"}


def is_page(path: Path) -> bool:
    """Whether it is the project's; in hidden folders are those of installed packages and of tools' caches."""
    parts = path.relative_to(ROOT).parts
    return not SKIPPED & set(parts) and not any(part.startswith(".") for part in parts)


PAGES = sorted(filter(is_page, ROOT.rglob("*.md")))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors that a forge makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue  # another site
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads to no file"
        if anchor:
            assert anchor in anchors(target), f"{link} leads to no heading"

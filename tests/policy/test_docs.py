"""Links between pages must work, docs/index.md must link all pages, sources must only name existing
pages, and lines must be short.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIPPED = {"target", "runs", "dist", "node_modules"}


def is_ours(path: Path) -> bool:
    """Tell whether a file belongs to the project; hidden folders hold installed packages and the
    caches of tools.
    """
    parts = path.relative_to(ROOT).parts
    built = parts[0] == "site"  # `make docs` writes this folder
    return (
        not built and not SKIPPED & set(parts) and not any(part.startswith(".") for part in parts)
    )


PAGES = sorted(filter(is_ours, ROOT.rglob("*.md")))
INDEX = ROOT / "docs" / "index.md"
DOCS = [page for page in PAGES if page.is_relative_to(INDEX.parent) and page != INDEX]
SOURCES = [
    path
    for suffix in ("py", "pyi", "rs", "toml")
    for path in ROOT.rglob(f"*.{suffix}")
    if is_ours(path)
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
EXTERNAL = re.compile(r"[a-z]+:")
MAX_WIDTH = 100  # as `line-length` in pyproject.toml, and `max_width` of rustfmt
RECORDS = ROOT / "benchmarks" / "results"


def anchors(page: Path) -> set[str]:
    """Return the anchors that a forge makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def linked(page: Path) -> list[tuple[str, Path, str]]:
    """Return the relative links of a page, with file and anchor ("" if an anchor is not given)."""
    found = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if not EXTERNAL.match(link):
            path, _, anchor = link.partition("#")
            found.append((link, (page.parent / path).resolve() if path else page, anchor))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link, target, anchor in linked(page):
        assert target.exists(), f"{link} leads to no file"
        if anchor:
            assert anchor in anchors(target), f"{link} leads to no heading"


def test_the_front_page_links_every_page():
    missing = {*DOCS} - {target for _, target, _ in linked(INDEX)}
    assert not missing, f"docs/index.md must also link {missing}"


def test_pages_named_in_sources_exist():
    missing = {
        f"{source.relative_to(ROOT)}: {name}"
        for source in SOURCES
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", source.read_text(encoding="utf-8"))
        if not (ROOT / name).is_file()
    }
    assert not missing


def long_lines(path: Path) -> list[str]:
    """Return the lines that are too long, except code blocks, tables, HTML, and single links."""
    lines = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        lines = re.sub(r"^( *)(```+).*?^ *\2 *$", "", lines, flags=re.MULTILINE | re.DOTALL)
    return [
        line
        for line in lines.splitlines()
        if len(line) > MAX_WIDTH
        and not line.lstrip(" /!").startswith(("|", "<"))
        and len(line.lstrip(" /!-#").split()) > 1
    ]


@pytest.mark.parametrize(
    "path",
    [
        *(p for p in PAGES if p.name != "CHANGELOG.md" and not p.is_relative_to(RECORDS)),
        *(source for source in SOURCES if source.suffix == ".rs"),
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_lines_are_short(path):
    assert not long_lines(path)

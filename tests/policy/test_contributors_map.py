"""CONTRIBUTING lists the places where an existing loss, data set and command are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXISTING = {
    "A loss": "multi_similarity",
    "A data set of image files": "image_folder",
    "A command": "protocol",
}


def places(kind: str, name: str) -> set[str]:
    """Return the files that CONTRIBUTING lists for this kind of thing."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (table,) = re.findall(rf"^{kind}\b[^\n]*:\n\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    return {
        row.replace("NAME", name) for row in re.findall(r"^\| `([^`]+)`", table, flags=re.MULTILINE)
    }


def names(path: Path, name: str) -> bool:
    """Return whether a file has this name, or its text contains the name in snake, kebab or camel
    case.
    """
    spellings = (name, name.replace("_", "-"), name.title().replace("_", ""))
    return (
        path.stem == name
        or re.search("|".join(spellings), path.read_text(encoding="utf-8")) is not None
    )


@pytest.mark.parametrize("kind", EXISTING)
def test_every_listed_place_names_an_existing_one(kind: str) -> None:
    listed = places(kind, EXISTING[kind])
    assert {path for path in listed if not names(ROOT / path, EXISTING[kind])} == set()


def test_the_places_of_a_loss_are_all_that_name_it() -> None:
    """The search excludes recipes and guides, which needn't name a new loss."""
    files = [ROOT / "pyproject.toml", *(ROOT / "docs" / "reference").glob("*.md")]
    for package in ("dml-core", "dml-losses"):
        files += [
            path
            for path in (ROOT / "packages" / package / "src").rglob("*.py*")
            if path.suffix != ".pyc"
        ]
    found = {path.relative_to(ROOT).as_posix() for path in files if names(path, EXISTING["A loss"])}
    assert found == places("A loss", EXISTING["A loss"])

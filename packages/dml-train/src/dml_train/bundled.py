"""The recipes that come with the package, as texts."""

from __future__ import annotations

from importlib.resources import files

from dml_core import UnknownName, nearest

_FOLDER = files("dml_train") / "recipes"


def bundled() -> list[str]:
    """The names of the recipes that come with the package."""
    return sorted(
        entry.name.removesuffix(".toml") for entry in _FOLDER.iterdir() if entry.name.endswith(".toml")
    )


def bundled_text(name: str) -> str:
    """A bundled recipe as it was written, with its comments.

    Raises:
        UnknownName: if there is none of this name, with the nearest.
    """
    names = bundled()
    if name not in names:
        raise UnknownName(
            f"no recipe {name!r}{nearest(name, names)} expected a path that ends in .toml, or one of the "
            f"{len(names)} names that 'dml recipes' lists"
        )
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def summary(text: str) -> str:
    """The first sentence of the comment that a recipe begins with; empty if it begins with none."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines).split(". ")[0].removesuffix(".")

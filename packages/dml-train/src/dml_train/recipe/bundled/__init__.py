"""The recipes that come with the package, as texts."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from dml_core import UnknownName, nearest

_FOLDER = files(__name__)


def bundled() -> list[str]:
    """List the names of the bundled recipes: a file's path without its suffix, as ``memvir/arc-face-cub``."""
    return sorted(_names(_FOLDER, ""))


def _names(folder: Traversable, prefix: str) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _names(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".toml"):
            yield prefix + entry.name.removesuffix(".toml")


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
    return _FOLDER.joinpath(f"{name}.toml").read_text(encoding="utf-8")


def summary(text: str) -> str:
    """The first sentence of the comment that a recipe begins with; empty if it begins with none."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines).split(". ")[0].removesuffix(".")

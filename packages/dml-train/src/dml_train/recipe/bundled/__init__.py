"""The texts of the bundled recipes.

A recipe's name is the file's path in this folder, excluding the suffix. If a file's name begins
with an underscore, the recipe isn't listed: it is incomplete, and only used as a parent in
`extends`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from dml_core import UnknownName, nearest

# The papers' titles, by folder of recipes.
PAPERS = {
    "heated-up": "Heated-Up Softmax Embedding",
    "ice": "Instance Cross Entropy for Deep Metric Learning",
    "memvir": "Learning with Memory-based Virtual Classes for Deep Metric Learning",
    "norm-softmax": "Making Classification Competitive for Deep Metric Learning",
    "reid": "Bag of Tricks and a Strong Baseline for Deep Person Re-identification",
    "rll": "Ranked List Loss for Deep Metric Learning",
    "vit": "Vision transformers: OML, VPTSP-G and Unicom",
}
PRETRAINED = (
    "pretrained"  # the folder of recipes that fine-tune learned features and don't follow a paper
)
_FOLDER = files(__name__)


def bundled_recipes() -> list[str]:
    """List the names of the bundled recipes, such as ``memvir/arc-face-cub``, except incomplete
    parents.
    """
    return sorted(
        name for name in _names(_FOLDER, "") if not name.rpartition("/")[2].startswith("_")
    )


def _names(folder: Traversable, prefix: str) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _names(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".toml"):
            yield prefix + entry.name.removesuffix(".toml")


def bundled_text(name: str) -> str:
    """Read the text of a bundled recipe with comments; raise `UnknownName` if the recipe doesn't
    exist.
    """
    if name not in _names(_FOLDER, ""):
        names = bundled_recipes()
        raise UnknownName(
            f"no recipe {name!r}{nearest(name, names)} expected a path that ends in .toml, or one "
            f"of the {len(names)} names that 'dml recipes' lists"
        )
    return _FOLDER.joinpath(f"{name}.toml").read_text(encoding="utf-8")


def leading_comment(text: str) -> str:
    """Return the comment lines that begin a recipe; empty if there are none."""
    return "".join(
        itertools.takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True))
    )


def summary(text: str) -> str:
    """Return the first sentence of a recipe's leading comment; empty if there is none."""
    lines = (line.removeprefix("#").strip() for line in leading_comment(text).splitlines())
    return " ".join(lines).split(". ")[0].removesuffix(".")

"""The parts of a data set as lists of images by class, and checks that apply to all data sets."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dml_core import DmlError, nearest
from dml_train.data.stored import Item
from dml_train.ranks.environment import is_first_process

_LOG = logging.getLogger("dml_train.data")

Classes = Mapping[str, Sequence[Item]]  # images by class name
# The parts per value of the column ``split`` in tables.
SPLITS = {"train": "train", "test": "test", "query": "test", "gallery": "gallery"}


class Parts(NamedTuple):
    """The parts of a data set. `test` contains the queries, and is also the gallery if `gallery` is
    None.

    `groups` gives the group per image, for example the camera; None if groups aren't defined.
    """

    train: Classes
    test: Classes
    gallery: Classes | None = None
    groups: Mapping[Any, str] | None = None
    is_split: bool = (
        True  # whether the source determines which images train; False after `split_classes`
    )

    def by_name(self) -> dict[str, Classes]:
        """Return the existing parts by name."""
        parts = {"train": self.train, "test": self.test, "gallery": self.gallery}
        return {name: part for name, part in parts.items() if part is not None}

    def files(self) -> Iterator[Item]:
        """Yield every image, by part and class."""
        for classes in self.by_name().values():
            for files in classes.values():
                yield from files


def count_images(classes: Classes) -> int:
    """Count the images of these classes."""
    return sum(map(len, classes.values()))


def split_classes(classes: Classes, train_fraction: float, seed: int, source: str) -> Parts:
    """Shuffle classes and split them into training and test classes, of which neither is empty.

    Args:
        classes: all classes.
        train_fraction: share of the classes that train; raises a `ValueError` unless it is above 0
            and below 1.
        seed: seed for shuffling.
        source: the folder or table, for the `DmlError` that is raised if there are fewer than 2
            classes.
    """
    if not 0.0 < train_fraction < 1.0:
        raise ValueError(
            f"train_fraction is {train_fraction}; expected a share above 0 and below 1"
        )
    if len(classes) < 2:
        raise DmlError(
            f"{source} has {len(classes)} classes; expected at least 2, to be divided into "
            "training and test"
        )
    names = sorted(classes)
    order = np.random.default_rng(seed).permutation(len(names))
    trained = min(max(round(train_fraction * len(names)), 1), len(names) - 1)
    train, test = (
        {names[c]: classes[names[c]] for c in sorted(part)} for part in np.split(order, [trained])
    )
    return Parts(train, test, is_split=False)


def divide(
    by_split: Mapping[str, Classes],
    train_fraction: float,
    split_seed: int,
    table: Path,
    ignore: str,
) -> Parts:
    """Divide the classes of a table by the column ``split``, see `SPLITS`; the key "" stands for a
    missing column.

    Classes are sorted by name. Shuffle and split them if the column is missing (`split_classes`).
    Raise a `DmlError` if the splits don't belong together, or the parts are invalid
    (`check_parts`); `ignore` says how to ignore the column.
    """
    if "" in by_split or not by_split:
        parts = split_classes(by_split.get("", {}), train_fraction, split_seed, str(table))
    elif {"test", "query"} <= by_split.keys() or ("query" in by_split) != ("gallery" in by_split):
        raise DmlError(
            f"{table} contains the splits {', '.join(by_split)}; expected train and test, or "
            "train, query and gallery"
        )
    else:
        by_part = {SPLITS[split]: dict(sorted(found.items())) for split, found in by_split.items()}
        parts = Parts(by_part.get("train", {}), by_part.get("test", {}), by_part.get("gallery"))
    sources = {part: f"the {part} part of {table}" for part in parts.by_name()}
    check_parts(parts, sources, f"rename one of them, or {ignore} to divide the classes")
    return parts


def check_split(split: str, where: str) -> None:
    """Raise a `DmlError` unless `split` is in `SPLITS`."""
    if split not in SPLITS:
        raise DmlError(
            f"{where}: split is {split!r}{nearest(split, SPLITS)} expected one of: "
            f"{', '.join(SPLITS)}"
        )


def check_parts(
    parts: Parts, sources: Mapping[str, str], remedy: str = "rename or move one of them"
) -> None:
    """Check that parts allow evaluation on unseen classes, and log queries that can't be matched.

    Raise a `DmlError` if a part is empty, a class is in training and evaluation, none of the
    queries has a match in the gallery, or class names differ only in spaces or the Unicode form of
    accents. The message names the `sources`, the folder or table per part, and the `remedy` for a
    class in training and evaluation.
    """
    by_name = parts.by_name()
    for part, classes in by_name.items():
        if not classes:
            raise DmlError(f"{sources[part]} doesn't contain images of any class")
    spellings: dict[str, str] = {}
    for name in sorted({name for classes in by_name.values() for name in classes}):
        normal = " ".join(unicodedata.normalize("NFC", name).split())
        if (other := spellings.setdefault(normal, name)) != name:
            raise DmlError(
                f"classes of {' and '.join(dict.fromkeys(sources.values()))} look equal: {other!r} "
                f"and {name!r} differ only in spaces or in the Unicode form of an accent; use one "
                "spelling, or different names"
            )
    for part, classes in by_name.items():
        if part != "train" and (both := sorted(parts.train.keys() & classes.keys())):
            raise DmlError(
                f"class {both[0]!r} is in {sources['train']} and in {sources[part]} ({len(both)} "
                f"in both); evaluation needs classes that training hasn't seen: {remedy}"
            )
    if parts.gallery is None:
        return
    unmatched = sorted(parts.test.keys() - parts.gallery.keys())
    if len(unmatched) == len(parts.test):
        raise DmlError(
            f"no class of {sources['test']} is in {sources['gallery']} "
            f"(e.g. {min(parts.test)!r} and {min(parts.gallery)!r}); "
            "a query's matches are the gallery's images of its class"
        )
    if unmatched and is_first_process():
        count = f"{len(unmatched):,} of the {len(parts.test):,} classes of {sources['test']}"
        example = f"{sources['gallery']}, e.g. {unmatched[0]!r}"
        _LOG.warning(
            "%s have no image in %s; metrics omit the queries of these classes", count, example
        )

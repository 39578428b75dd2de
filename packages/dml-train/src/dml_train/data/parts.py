"""The parts of a data set as lists of files by class, and checks that apply to all data sets."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dml_core import DmlError
from dml_train.ranks.environment import is_first_process

_LOG = logging.getLogger("dml_train.data")

Classes = Mapping[str, Sequence[Path]]  # files by class name


class Parts(NamedTuple):
    """The parts of a data set. `test` contains the queries, and is also the gallery if `gallery` is None.

    `groups` gives the group per file, for example the camera; None if groups aren't defined.
    """

    train: Classes
    test: Classes
    gallery: Classes | None = None
    groups: Mapping[Path, str] | None = None

    def by_name(self) -> dict[str, Classes]:
        """Return the existing parts by name."""
        parts = {"train": self.train, "test": self.test, "gallery": self.gallery}
        return {name: part for name, part in parts.items() if part is not None}

    def files(self) -> Iterator[Path]:
        """Yield every file, by part and class."""
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
        train_fraction: share of the classes that train; raises a `ValueError` unless it is above 0 and below 1.
        seed: seed for shuffling.
        source: the folder or table, for the `DmlError` that is raised if there are fewer than 2 classes.
    """
    if not 0.0 < train_fraction < 1.0:
        raise ValueError(f"train_fraction is {train_fraction}; expected a share above 0 and below 1")
    if len(classes) < 2:
        raise DmlError(
            f"{source} has {len(classes)} classes; expected at least 2, to be divided into training and test"
        )
    names = sorted(classes)
    order = np.random.default_rng(seed).permutation(len(names))
    trained = min(max(round(train_fraction * len(names)), 1), len(names) - 1)
    train, test = ({names[c]: classes[names[c]] for c in sorted(part)} for part in np.split(order, [trained]))
    return Parts(train, test)


def check_parts(parts: Parts, sources: Mapping[str, str]) -> None:
    """Check that parts allow evaluation on unseen classes, and log queries that can't be matched.

    Raise a `DmlError` if a part is empty, a class is in training and evaluation, none of the queries has a match in the
    gallery, or class names differ only in spaces or the Unicode form of accents. The message names the `sources`, the
    folder or table per part.
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
                f"classes of {' and '.join(dict.fromkeys(sources.values()))} look equal: {other!r} and {name!r} "
                "differ only in spaces or in the Unicode form of an accent; use one spelling, or different names"
            )
    for part, classes in by_name.items():
        if part != "train" and (both := sorted(parts.train.keys() & classes.keys())):
            raise DmlError(
                f"class {both[0]!r} is in {sources['train']} and in {sources[part]} ({len(both)} such); "
                "evaluation needs classes that training hasn't seen: rename or move one of them"
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
        _LOG.warning("%s have no image in %s; metrics omit the queries of these classes", count, example)

"""What a data set's files say: which images are in which part, and of which class; with the rules that all keep."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dml_core import DmlError
from dml_train.ranks.ranks import is_first_process

_LOG = logging.getLogger("dml_train.data")

Classes = Mapping[str, Sequence[Path]]  # the files of each class, by its name


class Parts(NamedTuple):
    """The parts of a data set. `test` holds the queries, and the gallery too where `gallery` is None."""

    train: Classes
    test: Classes
    gallery: Classes | None = None

    def named(self) -> dict[str, Classes]:
        """The parts that there are, by name."""
        return {name: part for name, part in self._asdict().items() if part is not None}


def count(classes: Classes) -> int:
    """How many images these classes have."""
    return sum(map(len, classes.values()))


def apart(classes: Classes, train_fraction: float, seed: int, where: str) -> Parts:
    """Classes shuffled and parted: the first share trains, the rest is the test. Each has at least one class.

    Args:
        classes: all of them.
        train_fraction: share that trains, above 0 and below 1.
        seed: of the shuffle.
        where: what to call the place that they come from.

    Raises:
        DmlError: fewer than two classes.
        ValueError: a fraction that isn't one.
    """
    check_fraction(train_fraction)
    if len(classes) < 2:
        raise DmlError(
            f"{where} has {len(classes)} classes; expected at least two, one to train and one to test"
        )
    names = sorted(classes)
    order = np.random.default_rng(seed).permutation(len(names))
    trained = min(max(round(train_fraction * len(names)), 1), len(names) - 1)
    train, test = ({names[c]: classes[names[c]] for c in sorted(part)} for part in np.split(order, [trained]))
    return Parts(train, test)


def check_fraction(train_fraction: float) -> None:
    """Refuse what isn't a share of the classes.

    Raises:
        ValueError: if it isn't above 0 and below 1.
    """
    if not 0.0 < train_fraction < 1.0:
        raise ValueError(f"train_fraction is {train_fraction}; expected a share above 0 and below 1")


def refuse_unfit(parts: Parts, where: Mapping[str, str]) -> None:
    """Hold parts to what evaluation on unseen classes needs. It is logged if some queries have no match.

    Args:
        parts: what was found.
        where: what to call each part's place.

    Raises:
        DmlError: an empty part, a class both in training and in what is measured, queries of which none has a
            match in the gallery, or two classes of one name.
    """
    for name, classes in parts.named().items():
        if not classes:
            raise DmlError(f"{where[name]} holds no image of any class")
    every = {name for classes in parts.named().values() for name in classes}
    refuse_look_alikes(every, " and ".join(dict.fromkeys(where.values())))
    for name, classes in parts.named().items():
        if name != "train" and (both := sorted(parts.train.keys() & classes.keys())):
            raise DmlError(
                f"class {both[0]!r} is in {where['train']} and in {where[name]} ({len(both)} such); "
                "embeddings are measured on classes that training hasn't seen: rename or move one of them"
            )
    if parts.gallery is not None and not parts.test.keys() & parts.gallery.keys():
        raise DmlError(
            f"no class of {where['test']} is in {where['gallery']} "
            f"(e.g. {min(parts.test)!r} and {min(parts.gallery)!r}); "
            "a query's matches are the gallery's images of its class"
        )
    if (
        parts.gallery is not None
        and (alone := sorted(parts.test.keys() - parts.gallery.keys()))
        and is_first_process()
    ):
        _LOG.warning(
            "%s of the %s classes of %s have no image in %s, e.g. %r; their queries are left out of every mean",
            f"{len(alone):,}",
            f"{len(parts.test):,}",
            where["test"],
            where["gallery"],
            alone[0],
        )


def refuse_look_alikes(names: Iterable[str], where: str) -> None:
    """Refuse classes whose names a person would read as one: equal but for spaces or the coding of accents.

    Raises:
        DmlError: if there are any.
    """
    seen: dict[str, str] = {}
    for name in sorted(names):
        read = " ".join(unicodedata.normalize("NFC", name).split())
        if (other := seen.setdefault(read, name)) != name:
            raise DmlError(
                f"two classes of {where} have one name: {other!r} and {name!r} differ only in spaces or in how an "
                "accent is coded; give them one spelling, or names that differ"
            )

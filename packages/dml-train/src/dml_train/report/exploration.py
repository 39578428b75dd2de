"""Collect what the page of `dml explore` shows: the map, neighbours, ranks and suspect labels.

Shapes: `N` items, `K` neighbours, `D` embedding dimension, `M` items placed by t-SNE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_core import DmlError, Evaluator, Registry, Split, SuspectLabels
from dml_train.data.decoding import read_image
from dml_train.measure.embed import groups_of
from dml_train.measure.evaluate import (
    Embedded,
    convert_errors,
    evaluate,
    make_evaluator,
    select_retrieval,
)
from dml_train.progress import stage
from dml_train.report.finished import FinishedRun
from dml_train.report.maps import choose_items, tsne
from dml_train.report.retrieval import NearestNeighbours
from dml_train.trained.suspects import K as VOTERS
from dml_train.trained.suspects import build_exact, name_items, read_folder

NEIGHBOURS = 10
_ANCHORS = 3  # items on the map between which another item is placed
_SIDE = 256  # pixels, at most, of a picture that is read from a file


@dataclass(frozen=True, slots=True)
class Exploration:
    """The items of an embedding. If the gallery is separate, its items follow the queries.

    Attributes:
        title: the name of the run or the folder.
        classes: (N,) names of the items' classes.
        files: (N,) names of the items' files, or numbers.
        picture: returns an item's picture, (height, width, 3); None if there are no pictures.
        points: (N, 2) the map, in [-1, 1].
        note: how the map was made.
        nearest: (N, K) int64, the nearest items, nearest first; -1 for items of a gallery.
        scores: (N, K) similarities (distances, if the run compares codes).
        right: (N, K) bool, whether the neighbour matches the item.
        matched: (N,) bool, whether the gallery contains a match.
        rank: (N,) int64, the rank of the first match; 0 without a match.
        suspects: how suspicious the labels are.
    """

    title: str
    classes: Sequence[str]
    files: Sequence[str]
    picture: Callable[[int], npt.NDArray[np.uint8]] | None
    points: npt.NDArray[np.float64]
    note: str
    nearest: npt.NDArray[np.int64]
    scores: npt.NDArray[Any]
    right: npt.NDArray[np.bool_]
    matched: npt.NDArray[np.bool_]
    rank: npt.NDArray[np.int64]
    suspects: SuspectLabels

    def __len__(self) -> int:
        """Return the number of items, N."""
        return len(self.classes)

    @property
    def wrong(self) -> npt.NDArray[np.int64]:
        """The items with a match, but a wrong nearest neighbour."""
        return np.flatnonzero(self.matched & ~self.right[:, 0])

    @property
    def is_distance(self) -> bool:
        """Whether scores increase from near to far."""
        found = self.scores[self.nearest[:, 0] >= 0]
        return bool((found[:, 0] < found[:, -1]).any())


def explore_run(run_dir: Path, registry: Registry, console: Console | None = None) -> Exploration:
    """Collect the test split of a finished run, without pictures if the data set can't be loaded.

    Raise a `DmlError` if the run isn't finished or was changed, if it didn't use the test split, or
    if its evaluator can't rank labels.
    """
    run = FinishedRun.read(run_dir, registry)
    if run.test is None:
        raise DmlError(f"{run_dir} has no test embeddings: its recipe sets evaluation.test = false")
    table, splits = run.recipe.evaluation.component(), [run.queries.split]
    if run.test.embedded.gallery is not None:
        splits.append(run.gallery.split)
    known = [split for split in splits if split is not None]
    ranks = {**select_retrieval(table), "name": table["name"], "metrics": ["mrr"]}
    groups = [own for split in known if (own := groups_of(split)) is not None]
    return _explore(
        run.name,
        run.test.embedded,
        [name for split in known for name in np.array(split.class_names)[split.labels].tolist()],
        [name for split in known for name in name_items(split)],
        (lambda item: _picture(known, item)) if known else None,
        np.concatenate(groups) if groups else None,
        make_evaluator(ranks, registry, run.recipe.training.seed),
        registry,
        console,
    )


def explore_folder(
    images: Path,
    embeddings: Path,
    labels: Path | None,
    registry: Registry,
    console: Console | None = None,
) -> Exploration:
    """Collect the images of a folder, embedded by any network; see `find_suspects` for the files.

    Raise a `DmlError` if the arrays don't fit the images, or can't be compared.
    """
    rows, names, paths = read_folder(images, embeddings, labels)
    return _explore(
        images.resolve().name,
        Embedded(rows, np.unique(names, return_inverse=True)[1]),
        names.tolist(),
        paths,
        lambda item: np.asarray(read_image(images / paths[item], _SIDE)),
        None,
        registry.build("evaluators", {"name": "exact", "metrics": ["mrr"]}, {"seed": 0}),
        registry,
        console,
    )


def _explore(
    title: str,
    embedded: Embedded,
    classes: Sequence[str],
    files: Sequence[str],
    picture: Callable[[int], npt.NDArray[np.uint8]] | None,
    groups: npt.NDArray[Any] | None,
    evaluator: Evaluator,
    registry: Registry,
    console: Console | None,
) -> Exploration:
    queries, rows, labels = len(embedded.embeddings), embedded.embeddings, embedded.labels
    if embedded.gallery is not None and embedded.gallery_labels is not None:
        rows = np.concatenate([rows, embedded.gallery])
        labels = np.concatenate([labels, embedded.gallery_labels])
    exact = build_exact(registry)
    if not classes:  # the data set can't be loaded
        classes = [f"class {label}" for label in labels.tolist()]
        files = [f"item {item}" for item in range(len(classes))]
    numbers = np.unique(np.asarray(classes, dtype=object), return_inverse=True)[1]
    with stage(console, "exploring", 4) as show, convert_errors("explore"):
        found = NearestNeighbours.find(evaluator, embedded, NEIGHBOURS)
        reciprocal = evaluate(evaluator, embedded).per_query["mrr"]
        show(1, "neighbours found")
        voters = min(VOTERS, len(rows) - 1)
        suspects = exact.suspect_labels(rows, np.asarray(classes), voters, groups)
        show(2, "labels compared")
        points, note = _place(exact, rows, numbers)
        show(4, "map drawn")
    more = len(rows) - queries  # items of a separate gallery, which follow the queries
    offset = queries if more else 0
    with np.errstate(divide="ignore", invalid="ignore"):
        rank = np.nan_to_num(np.rint(1 / reciprocal), nan=0, posinf=0).astype(np.int64)
    return Exploration(
        title=title,
        classes=classes,
        files=files,
        picture=picture,
        points=points,
        note=note,
        nearest=np.pad(found.nearest_QK + offset, ((0, more), (0, 0)), constant_values=-1),
        scores=np.pad(found.scores_QK, ((0, more), (0, 0))),
        right=np.pad(found.right_QK, ((0, more), (0, 0))),
        matched=np.pad(found.matched_Q, (0, more)),
        rank=np.pad(rank, (0, more)),
        suspects=suspects,
    )


def _place(
    evaluator: Evaluator, rows_ND: npt.NDArray[Any], classes_N: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], str]:
    """Return the map, (N, 2), and how it was made: t-SNE, and other items between the nearest."""
    chosen = choose_items(classes_N)
    points_M2 = tsne(rows_ND[chosen])
    note = f"The map is a t-SNE of {len(chosen):,} items"
    if len(chosen) == len(rows_ND):
        return points_M2, f"{note}."
    rest = np.setdiff1d(np.arange(len(rows_ND)), chosen)
    points_N2 = np.empty((len(rows_ND), 2))
    points_N2[chosen] = points_M2
    similarity, nearest = evaluator.nearest(rows_ND[rest], rows_ND[chosen], _ANCHORS)
    weights = np.exp(10.0 * (similarity.astype(np.float64) - similarity[:, :1]))
    weights /= weights.sum(axis=1, keepdims=True)
    points_N2[rest] = (points_M2[nearest] * weights[:, :, None]).sum(axis=1)
    return points_N2, f"{note}; other items lie between the {_ANCHORS} nearest of these."


def _picture(splits: Sequence[Split], item: int) -> npt.NDArray[np.uint8]:
    for split in splits[:-1]:
        if item < len(split):
            return split.picture(item)
        item -= len(split)
    return splits[-1].picture(item)

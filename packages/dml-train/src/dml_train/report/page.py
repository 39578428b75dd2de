"""From a run's folder to ``report.html``: what is on the page, in the order in which it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dml_core import Registry
from dml_core import registry as installed
from dml_train.files import write_atomically
from dml_train.measure.evaluate import Embedded
from dml_train.report.classes import SizeBin, by_size, size_against_recall
from dml_train.report.codes import against_codes
from dml_train.report.figures import MARKS, Figure, curves
from dml_train.report.finished import FinishedRun, Items, read_json
from dml_train.report.layout import chosen_items, tsne
from dml_train.report.maps import map_of_pictures, map_of_points
from dml_train.report.retrieval import Search
from dml_train.report.spread import evenly
from dml_train.report.template import render

COMPARISON = "comparison.json"  # {name: figures}, left by whoever compared the run with something


@dataclass(frozen=True, slots=True)
class Sizes:
    """Class sizes against recall; no figure where all classes have one size."""

    bins: Sequence[SizeBin]
    figure: Figure | None
    gallery_apart: bool


def write_report(run_dir: Path, registry: Registry | None = None) -> Path:
    """Write a finished run's ``report.html``: figures with intervals, curves, retrievals, maps, classes.

    The page is one file, without scripts and without anything from elsewhere. Names and pictures of items are on
    it where the data set can be had; where it can't, a note says why.

    Args:
        run_dir: the run's folder. With a ``comparison.json`` in it, ``{name: figures}``, that table is shown, too.
        registry: where the data set and the evaluator are found; default: all that is installed.

    Returns:
        The page's path. A page that was there is replaced.

    Raises:
        DmlError: if it isn't a run's folder, the run hasn't ended, or a file in it is damaged.
    """
    registry = registry or installed()
    run = FinishedRun.read(run_dir, registry)
    comparison = run_dir / COMPARISON
    page = render(
        "report.html.j2",
        title=run.name,
        recipe=run.recipe,
        recipe_text=run.folder.recipe.read_text(encoding="utf-8"),
        result=run.result,
        metrics=run.metrics(),
        comparison=read_json(comparison) if comparison.is_file() else {},
        codes=against_codes(run, registry),
        curves=curves({run.name: run.lines}),
        measured=run.measured is not None,
        queries=run.queries,
        gallery=run.gallery,
        absent=run.absent,
        **_looked_into(run),
    )
    path = run_dir / "report.html"
    write_atomically(path, lambda file: file.write(page))
    return path


def _looked_into(run: FinishedRun) -> dict[str, Any]:
    """What needs the embeddings themselves."""
    if run.measured is None:
        return {"worst": []}
    embedded = run.measured.embedded
    search = Search.of(run.measured.evaluator, embedded)
    sizes_C, recalls_C = search.class_recalls()
    bins = by_size(sizes_C, recalls_C)
    figure = size_against_recall(sizes_C, recalls_C, bins) if len(bins) > 1 else None
    return {
        "wrong": search.examples(right=False),
        "right": search.examples(right=True),
        "worst": search.worst_classes(),
        "sizes": Sizes(bins, figure, embedded.gallery is not None),
        "maps": _maps(embedded, run.queries),
    }


def _maps(embedded: Embedded, items: Items) -> list[Figure]:
    labels_N = np.asarray(embedded.labels)
    chosen = chosen_items(labels_N)
    labels_M = labels_N[chosen]
    points_M2 = tsne(embedded.embeddings[chosen])
    classes, firsts = np.unique(labels_M, return_index=True)
    named = {
        int(labels_M[first]): items.name(int(chosen[first])) or f"class {labels_M[first]}"
        for first in firsts[evenly(len(classes), len(MARKS))]
    }
    which = f"all {len(labels_N):,} test embeddings, normalised"
    if len(chosen) < len(labels_N):
        which = (
            f"{len(chosen):,} of the {len(labels_N):,} test embeddings, normalised: of {len(classes):,} of "
            f"{len(np.unique(labels_N)):,} classes, spread evenly"
        )
    maps = [map_of_points(points_M2, labels_M, named, which)]
    split = items.split
    if split is not None:
        maps.append(map_of_pictures(points_M2, lambda place: split.picture(int(chosen[place]))))
    return maps

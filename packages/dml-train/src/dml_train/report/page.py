"""Write a run's ``report.html``, with the contents in reading order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dml_core import AugmentedSplit, Registry
from dml_core import registry as installed
from dml_train.files import read_json
from dml_train.measure.listing import explain
from dml_train.report.diagrams import (
    draw_accuracy,
    draw_curves,
    draw_recall_by_size,
    group_by_size,
    list_prefixes,
)
from dml_train.report.finished import FinishedRun, compare_with_codes
from dml_train.report.maps import draw_maps
from dml_train.report.rendering import make_thumbnail, select_evenly, write_page
from dml_train.report.retrieval import NearestNeighbours
from dml_train.seeds import row_seeds

_AUGMENTED, _AUGMENTATIONS = 4, 8  # training images, and augmentations per image
COMPARISON = "comparison.json"  # {name: metrics} of other embeddings to compare with the run's


def write_report(run_dir: Path | str, registry: Registry | None = None) -> Path:
    """Write or replace a finished run's ``report.html``: metrics with intervals, curves,
    retrievals, maps, classes.

    The page is a single file that doesn't need scripts or other files. If the data set can't be
    loaded, the page has a note with the reason instead of names and pictures. Raise a `DmlError` if
    `run_dir` isn't a run's folder, the run isn't finished, or a file is damaged.

    Args:
        run_dir: the run's folder. If this contains a ``comparison.json``, ``{name: metrics}``, the
            table is also shown.
        registry: provides the data set and the evaluator; default: all installed components.
    """
    run_dir, registry = Path(run_dir), registry or installed()
    run = FinishedRun.read(run_dir, registry)
    comparison = run.folder.comparison
    metrics = run.metrics()
    return write_page(
        run_dir / "report.html",
        "report.html.j2",
        title=run.name,
        recipe=run.recipe,
        recipe_text=run.folder.recipe.read_text(encoding="utf-8"),
        result=run.result,
        metrics=metrics,
        meanings=explain(metric.name for metric in metrics),
        baselines=run.baselines,
        comparison=read_json(comparison) if comparison.is_file() else {},
        codes=compare_with_codes(run, registry),
        prefixes=list_prefixes(run.result, run.test.embedded.embeddings.shape[1])
        if run.test
        else None,
        curves=draw_curves({run.name: run.lines}),
        accuracy=draw_accuracy(run),
        has_test=run.test is not None,
        queries=run.queries,
        gallery=run.gallery,
        train=run.train,
        augmented=_augment_examples(run),
        absent=run.absent,
        **_describe_embeddings(run),
    )


def _augment_examples(run: FinishedRun) -> list[tuple[int, list[str]]]:
    """Return some training items, with thumbnails of augmentations by seeds of the run; [] if
    unsupported.
    """
    split = run.train.split
    if not isinstance(split, AugmentedSplit):
        return []
    seeds = row_seeds(run.recipe.training.seed, 0, np.arange(_AUGMENTATIONS)).tolist()
    return [
        (index, [make_thumbnail(split.augmented_picture(index, seed)) for seed in seeds])
        for index in select_evenly(len(split), _AUGMENTED).tolist()
    ]


def _describe_embeddings(run: FinishedRun) -> dict[str, Any]:
    """Return the sections that need the embeddings."""
    if run.test is None:
        return {"worst": []}
    embedded = run.test.embedded
    neighbours = NearestNeighbours.find(run.test.evaluator, embedded)
    sizes_C, recalls_C = neighbours.class_recalls()
    bins = group_by_size(sizes_C, recalls_C)
    return {
        "wrong": neighbours.examples(right=False),
        "right": neighbours.examples(right=True),
        "worst": neighbours.worst_classes(),
        "sizes": bins,
        # If all classes have equal size, a comparison isn't possible.
        "by_size": draw_recall_by_size(sizes_C, recalls_C, bins) if len(bins) > 1 else None,
        "separate_gallery": embedded.gallery is not None,
        "maps": draw_maps(embedded, run.queries),
    }

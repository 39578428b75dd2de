"""Retrieval metrics of embeddings in shards."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import dml_eval_rs._native as _native
from dml_eval_rs.matches.relation import Relation
from dml_eval_rs.metrics.evaluation import Evaluation
from dml_eval_rs.retrieval import (
    CheckedOptions,
    LabelsLike,
    Matches,
    Options,
    check_options,
    to_evaluation,
)
from dml_eval_rs.shards.calls import Call, describe_shards, relate_shards
from dml_eval_rs.shards.counting import Counting
from dml_eval_rs.shards.running import Map
from dml_eval_rs.shards.sources import Source
from dml_eval_rs.shards.tasks import TaskOptions


def evaluate_shards(
    shards: Sequence[Source],
    labels: Matches,
    gallery: Sequence[Source] | None = None,
    gallery_labels: LabelsLike | None = None,
    *,
    map: Map = builtins.map,
    block: int | None = None,
    **options: Unpack[Options],
) -> Evaluation:
    """Measure embeddings that lie in shards, by tasks on any kind of worker, with the bits of one call of `evaluate`.

    The shards, concatenated, are the embeddings. Each task reads two blocks of rows and returns a few numbers for each
    query, which are added up, so workers, their number, order, retries and repeated tasks change no bit. The calling
    process holds the labels, and 24 bytes for each pair of a query and its match, but never the embeddings.

    Args:
        shards: paths of .npy files, which the workers map; functions without arguments that return an array (picklable;
            called once for each task, so let them map or cache); or arrays, whose rows are sent with the tasks.
            All (n_i, D) of one float dtype, or (n_i, W) uint8 codes with ``similarity="hamming"``; n_i may be 0.
        labels: of all rows in the shards' order, as in `evaluate`: an array, `Labels` or `Relevance`.
        gallery: shards of the gallery; None if the queries search one another.
        gallery_labels: of all rows of the gallery.
        map: calls a picklable function once for each task and returns the results, in any order: the builtin, the `map`
            of an executor of threads or processes, `adapters.ray.ray_map()`, or your own (docs/guide/shards.md).
        block: the most rows of a block; a task holds two. None: a quarter of the rows, within 8,192 and 131,072.
        options: as in `evaluate`, with metrics of retrieval only, and without `peers`. `threads` are those of each
            task, by default 1, and None for all cores of a worker's machine; `progress` is called after each task.

    Returns:
        As `evaluate`.

    Raises:
        TypeError: as `evaluate`, or if the map returns anything but the results of its function.
        ValueError: as `evaluate`, or, naming the shard, if it is absent or unreadable on a worker, differs from the
            others in width or dtype, changed between two tasks, has a row that isn't finite, or lost its result; or
            if a worker has another version of this package.
    """
    checked = _check(options)
    found = describe_shards(shards, gallery, checked.similarity, map)
    unmatched = "zero" if checked.zero_unmatched else "skip"
    sides, relation, rows = relate_shards(found, labels, gallery_labels, block, checked.exclude, unmatched)
    symmetric = gallery is None and relation.offsets is None and relation.ignored_offsets is None
    of_tasks = TaskOptions(
        checked.similarity, checked.ties[0], checked.metrics, checked.threads, gallery is None, symmetric
    )
    call = Call(sides[0], sides[-1], symmetric, of_tasks, map, checked.progress, relation.arrays())
    positives = Counting(call, relation).count()
    if len(positives.keys) == 0 and not checked.zero_unmatched:
        raise ValueError(
            f"none of the {len(sides[0])} queries has a match in the gallery; expected a label that occurs twice, or "
            "on both sides"
        )
    graded = Relation(offsets=relation.offsets, items=relation.items, grades=relation.grades)
    columns = _native.compute_metrics(
        graded, zero_unmatched=checked.zero_unmatched, **of_tasks.of_core(positives)
    )
    return to_evaluation(
        columns, checked, len(rows.queries), len(rows.items), None if gallery else relation.kept
    )


def _check(options: Options) -> CheckedOptions:
    """Check the options of `evaluate`, of which this takes fewer."""
    if "peers" in options:
        raise TypeError(
            "evaluate_shards takes no peers, since map divides the work; expected a map over the ranks, as in "
            "docs/guide/shards.md of the repository"
        )
    checked = check_options(**options)
    if checked.clustering:
        raise ValueError(
            f"metrics holds {checked.clustering[0]!r}, which clusters all embeddings in one process; expected metrics "
            "of retrieval: call evaluate on a sample"
        )
    return checked if "threads" in options else replace(checked, threads=1)

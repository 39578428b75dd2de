"""Verification for embeddings in shards.

Shapes: `P` positive pairs, `S` searches for thresholds, `K` kept scores.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import COSINE, Progress, Similarity
from dml_eval_rs.matches.relation import Relation
from dml_eval_rs.retrieval import LabelsLike
from dml_eval_rs.shards.rows import Source
from dml_eval_rs.shards.tasks import Call, Loaded, Map, begin_call
from dml_eval_rs.verification import rates
from dml_eval_rs.verification.result import Verification
from dml_eval_rs.verification.verify import DEFAULT

# Scores (K,) of negatives, hashes (K,), and the least number of trailing zeros in a hash (0 if all
# negatives are kept).
_Kept = tuple[npt.NDArray[np.float64], npt.NDArray[np.uint64], int]
# The number of negatives above a search's range, the number inside, and scores of negatives inside
# (see `_Kept`).
_Observed = tuple[int, int, npt.NDArray[np.float64], npt.NDArray[np.uint64], int]

_SAMPLE = 1 << 21  # scores of negatives, 16 bytes each, to sample for the first search ranges
_KEPT = 1 << 22  # scores of negatives, 16 bytes each, to keep in total
# All tasks return scores, so a task keeps only `_SHARES` times its share, but at least
# `_LEAST_KEPT` per search.
_SHARES, _LEAST_KEPT = 16, 1 << 16


def verify_shards(
    shards: Sequence[Source],
    labels: LabelsLike,
    gallery: Sequence[Source] | None = None,
    gallery_labels: LabelsLike | None = None,
    *,
    map: Map = builtins.map,
    block: int | None = None,
    metrics: str | Iterable[str] = DEFAULT,
    similarity: Similarity = COSINE,
    threads: int | None = 1,
    progress: Progress | None = None,
) -> Verification:
    """Measure thresholds for embeddings in shards, using tasks on any kind of worker; return the
    result of `verify`.

    Tasks compare two blocks of rows. Embeddings need two passes over all pairs of blocks: first to
    find the positives' scores and sample the negatives, then to count the negatives near the
    thresholds. More passes are needed when a threshold is not found yet, for example because a
    great number of scores are equal. Codes need a single pass. The calling process stores the
    labels, 8 bytes per positive pair, and the scores of 2**22 negatives, but no embeddings.

    Args:
        shards, gallery, map, block: see `evaluate_shards`.
        labels, gallery_labels: the labels of all rows, in the order of the shards, see `verify`:
            arrays or `Labels`.
        metrics, similarity: see `verify`. For ``"auc"``, tasks return 16 bytes per distinct score
            of a positive pair.
        threads, progress: see `evaluate_shards`; the total grows when a pass begins.

    Raises:
        TypeError, ValueError: as `verify` and `evaluate_shards`.
    """
    names = rates.check_names(metrics)
    arguments.one_of(similarity, "similarity", arguments.SIMILARITIES)
    options = {"similarity": similarity, "threads": arguments.threads(threads)}
    call, _ = begin_call(shards, labels, gallery, gallery_labels, options, map, block, progress)
    numbers = rates.count_pairs(rates.check_relation(call.relation))
    if similarity == "hamming":
        tasks = call.run_tiles("distances", _count_distances)
        counts = np.sum([found for _, found in tasks], axis=0)
        return rates.measure_distances(counts[0], counts[1], names)
    points, slots = _find_crossings(call, names, *numbers)
    return rates.measure_crossings(points, slots, names, *numbers)


def _find_crossings(
    call: Call, names: list[str], n_positive: int, n_negative: int
) -> tuple[list[rates.Point], rates.Slots | None]:
    """Find the first negative to reject per FAR, and where errors are equal; count negatives
    between positives.
    """
    zeros = (call.count_pairs(call.tiles()) // _SAMPLE).bit_length()
    scores, sample = list[npt.NDArray[np.float64]](), (np.zeros(0), np.zeros(0, np.uint64), zeros)
    options = {"zeros": zeros, "capacity": _SAMPLE}
    tasks = call.run_tiles("positives", _on_pair, lambda _: (_native.begin_pairs, options))
    for _, (of_pair, kept) in tasks:
        scores.append(of_pair)
        sample = _join_kept(sample, kept, _SAMPLE)
    order_P = np.sort(rates.to_order(np.concatenate(scores)))
    positives = rates.scores_of(order_P)
    ranks = rates.first_rejected(names, n_negative)
    given: Any = {
        "positives": positives,
        "negatives": n_negative,
        "threads": call.options["threads"],
    }
    levels: Any = {"ranks": ranks, "equal_errors": "eer" in names}
    ranges = _native.begin_searches(sample[0], **levels, **given)
    found: list[tuple[float, int, int] | None] = [None] * len(ranges)
    slots, wants_slots, passes = None, rates.wants_slots(names), 0
    while None in found or (wants_slots and slots is None):
        passes += 1
        between = positives if wants_slots and slots is None else None
        observed, counted = _observe(call, f"pass {passes}", ranges, between)
        slots = counted if slots is None else slots
        open_ = [i for i, crossing in enumerate(found) if crossing is None]
        open_ranks = [ranks[i] for i in open_ if i < len(ranks)]
        levels = {"ranks": open_ranks, "equal_errors": len(open_ranks) < len(open_)}
        ranges, crossings = _native.advance_searches(ranges, observed, **levels, **given)
        for i, crossing in zip(open_, crossings, strict=True):
            found[i] = crossing
        ranges = np.ascontiguousarray(ranges[[crossing is None for crossing in crossings]])

    def point(score: float, above: int, at_least: int) -> rates.Point:
        limit = rates.to_order(np.array([score]))[0]
        higher = n_positive - int(np.searchsorted(order_P, limit, "right"))
        return score, above, at_least, higher, n_positive - int(np.searchsorted(order_P, limit))

    points = [point(*crossing) for crossing in found if crossing is not None]
    if slots is None:
        return points, None
    distinct, numbers = np.unique(order_P, return_counts=True)
    return points, (rates.scores_of(distinct), numbers.astype(np.uint64), slots)


def _observe(
    call: Call,
    name: str,
    ranges: npt.NDArray[np.float64],
    positives: npt.NDArray[np.float64] | None,
) -> tuple[list[_Observed], npt.NDArray[np.uint64] | None]:
    """Count the negatives in each search's range (S, 4), and between adjacent positives (P,)."""
    capacity = _KEPT // max(1, len(ranges))
    task_capacity = max(_SHARES * capacity // len(call.tiles()), _LEAST_KEPT)
    observed: list[_Observed] = [(0, 0, np.zeros(0), np.zeros(0, np.uint64), 0)] * len(ranges)
    slots = None
    searching = {"ranges": ranges, "positives": positives, "capacity": min(capacity, task_capacity)}
    tasks = call.run_tiles(name, _on_pair, lambda _: (_native.count_pairs, searching))
    for _, (found, counted) in tasks:
        for i, (old, new) in enumerate(zip(observed, found, strict=True)):
            observed[i] = (
                old[0] + new[0],
                old[1] + new[1],
                *_join_kept(old[2:], new[2:], capacity),
            )
        slots = counted if slots is None else slots + counted
    return observed, slots


def _join_kept(a: _Kept, b: _Kept, capacity: int) -> _Kept:
    """Merge scores. When there are more than `capacity`, keep only hashes that end in more
    zeros.
    """
    (scores, hashes), zeros = (np.concatenate(both) for both in zip(a[:2], b[:2])), max(a[2], b[2])
    while True:
        kept = (hashes & np.uint64(2**zeros - 1)) == 0
        scores, hashes = scores[kept], hashes[kept]
        if len(scores) <= capacity or zeros == 64:
            return scores, hashes, zeros
        zeros += 1


def _on_pair(
    loaded: Loaded, relation: Relation, function: Callable[..., Any], more: dict[str, Any]
) -> Any:
    """Call a core function with the rows of both blocks."""
    return function(*loaded.pair, relation, first=loaded.first, **loaded.options, **more)


def _count_distances(
    loaded: Loaded, relation: Relation
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return the numbers of positive and negative pairs per distance."""
    queries, gallery = loaded.pair
    groups: Any = {"groups": relation.groups, "gallery_groups": relation.gallery_groups}
    sides: Any = queries, relation.labels, gallery, relation.gallery_labels
    return _native.count_distances(*sides, **groups, threads=loaded.options["threads"])

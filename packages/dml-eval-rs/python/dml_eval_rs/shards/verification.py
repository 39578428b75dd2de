"""Verification of embeddings in shards.

Shapes: `P` positive pairs, `S` searches for thresholds, `K` kept scores.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Progress, Similarity
from dml_eval_rs.matches.relation import Relation
from dml_eval_rs.matches.relevance import Relevance
from dml_eval_rs.retrieval import LabelsLike
from dml_eval_rs.shards.calls import Call, describe_shards, relate_shards
from dml_eval_rs.shards.running import Map, Work
from dml_eval_rs.shards.sides import Part, compute_on
from dml_eval_rs.shards.sources import Source
from dml_eval_rs.verification.rates import (
    Asked,
    Point,
    Slots,
    accepted_at_most,
    check_asked,
    count_pairs,
    measure_crossings,
    measure_distances,
    scores_of,
    to_order,
)
from dml_eval_rs.verification.result import Verification
from dml_eval_rs.verification.verify import DEFAULT

# Scores (K,) of negatives whose hashes (K,) end in so many zeros: a sample, or all negatives if the number is 0.
_Kept = tuple[npt.NDArray[np.float64], npt.NDArray[np.uint64], int]
# Of a search: the negatives above its range and inside, and scores of those inside.
_Observed = tuple[int, int, npt.NDArray[np.float64], npt.NDArray[np.uint64], int]

_SAMPLE = 1 << 21  # scores of negatives, 16 bytes each, from which the searches begin
_KEPT = 1 << 22  # scores of negatives, 16 bytes each, that all searches keep together
# A task keeps less, since all tasks return scores: so many times its share, but not less than this for each search.
_SHARES, _LEAST_KEPT = 16, 1 << 16


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """Options of a verification that its tasks need."""

    similarity: str
    threads: int | None


class Searching(NamedTuple):
    """What the tasks of a later pass look for."""

    ranges: npt.NDArray[
        np.float64
    ]  # (S, 4): of each search, a range with the threshold, and its part for this pass
    positives: npt.NDArray[np.float64] | None  # (P,), to count the negatives between their scores
    capacity: int  # the most scores that a task keeps for each search


def verify_shards(
    shards: Sequence[Source],
    labels: LabelsLike,
    gallery: Sequence[Source] | None = None,
    gallery_labels: LabelsLike | None = None,
    *,
    map: Map = builtins.map,
    block: int | None = None,
    metrics: str | Iterable[str] = DEFAULT,
    similarity: Similarity = "cosine",
    threads: int | None = 1,
    progress: Progress | None = None,
) -> Verification:
    """Measure thresholds on embeddings that lie in shards, by tasks on any kind of worker, with the bits of `verify`.

    Each task compares two blocks of rows. Embeddings take two passes over all pairs of blocks: the first finds the
    scores of the positives and samples the negatives, the second counts the negatives near each threshold. More passes
    follow where a threshold is still open, as among very many equal scores. Codes take one pass. The calling process
    holds the labels, 8 bytes for each positive pair, and the scores of 2**22 negatives, but never the embeddings.

    Args:
        shards, gallery: as in `evaluate_shards`. Without a gallery each unordered pair of two rows is compared once.
        labels, gallery_labels: of all rows in the shards' order, as in `verify`: arrays or `Labels`.
        map, block: as in `evaluate_shards`.
        metrics, similarity: as in `verify`. For ``"auc"`` each task of a pass returns 16 bytes per distinct score of a
            positive pair.
        threads: number of threads of each task; None for all cores of its machine.
        progress: called as ``progress(done, total)``, in pairs compared, after each task; the total grows with each
            pass.

    Returns:
        As `verify`.

    Raises:
        TypeError, ValueError: as `verify` and `evaluate_shards`.
    """
    asked = check_asked(metrics)
    arguments.one_of(similarity, "similarity", arguments.SIMILARITIES)
    options = VerifyOptions(similarity, arguments.threads(threads))
    found = describe_shards(shards, gallery, similarity, map)
    if isinstance(labels, Relevance):
        raise ValueError("labels is a Relevance, which lists matches; expected an array or Labels")
    sides, relation, _ = relate_shards(found, labels, gallery_labels, block)
    if relation.ignored_offsets is not None:
        raise ValueError("labels have ignored items, which verification doesn't leave out; expected none")
    call = Call(sides[0], sides[-1], gallery is None, options, map, progress, relation.arrays())
    numbers = count_pairs(relation)
    passes = _Passes(call, asked, *numbers)
    if similarity == "hamming":
        return measure_distances(*passes.count_distances(), asked)
    points, slots = passes.find_crossings()
    return measure_crossings(points, slots, asked, *numbers)


@dataclass(frozen=True, slots=True)
class _Passes:
    """The passes over all pairs of blocks."""

    call: Call
    asked: Asked
    n_positive: int
    n_negative: int

    def count_distances(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Return the numbers of positive and of negative pairs of codes at each distance."""
        counts = np.sum([found for _, found in self.call.run_all("distances", _count_distances)], axis=0)
        return counts[0], counts[1]

    def find_crossings(self) -> tuple[list[Point], Slots | None]:
        """Find the negative that each FAR refuses, and where errors are equal; count negatives between positives."""
        positives, sample = self._begin()
        order_P = to_order(positives)
        distinct, numbers = np.unique(order_P, return_counts=True)
        ranks = [accepted_at_most(share, self.n_negative) + 1 for share in self.asked.shares]
        given: dict[str, Any] = {"positives": positives, "negatives": self.n_negative}
        given |= {
            "ranks": ranks,
            "equal_errors": "eer" in self.asked.names,
            "threads": self.call.options.threads,
        }
        ranges = _native.begin_searches(sample, **given)
        found: list[tuple[float, int, int] | None] = [None] * len(ranges)
        slots, wants_slots, passes = None, "auc" in self.asked.names, 0
        while None in found or (wants_slots and slots is None):
            passes += 1
            between = positives if wants_slots and slots is None else None
            observed, counted = self._observe(f"pass {passes}", ranges, between)
            slots = counted if slots is None else slots
            open_ = [i for i, crossing in enumerate(found) if crossing is None]
            open_ranks = [ranks[i] for i in open_ if i < len(ranks)]
            given |= {"ranks": open_ranks, "equal_errors": len(open_ranks) < len(open_)}
            ranges, crossings = _native.advance_searches(ranges, observed, **given)
            for i, crossing in zip(open_, crossings, strict=True):
                found[i] = crossing
            ranges = np.ascontiguousarray(ranges[[crossing is None for crossing in crossings]])

        def point(score: float, above: int, at_least: int) -> Point:
            limit = to_order(np.array([score]))[0]
            higher = len(order_P) - int(np.searchsorted(order_P, limit, "right"))
            return score, above, at_least, higher, len(order_P) - int(np.searchsorted(order_P, limit))

        points = [point(*crossing) for crossing in found if crossing is not None]
        return points, None if slots is None else (scores_of(distinct), numbers.astype(np.uint64), slots)

    def _begin(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the scores of all positives, ascending, and of some negatives."""
        zeros = (sum(map(self.call.pairs, self.call.tiles())) // _SAMPLE).bit_length()
        positives: list[npt.NDArray[np.float64]] = []
        sample: _Kept = (np.zeros(0), np.zeros(0, np.uint64), zeros)
        for _, (scores, kept) in self.call.run_all("positives", _begin_pairs, zeros, _SAMPLE):
            positives.append(scores)
            sample = _join_kept(sample, kept, _SAMPLE)
        return scores_of(np.sort(to_order(np.concatenate(positives)))), sample[0]

    def _observe(
        self, name: str, ranges: npt.NDArray[np.float64], positives: npt.NDArray[np.float64] | None
    ) -> tuple[list[_Observed], npt.NDArray[np.uint64] | None]:
        """Count the negatives in the ranges of searches, and between the positives."""
        capacity = _KEPT // max(1, len(ranges))
        of_task = max(_SHARES * capacity // len(self.call.tiles()), _LEAST_KEPT)
        observed: list[_Observed] = [(0, 0, np.zeros(0), np.zeros(0, np.uint64), 0)] * len(ranges)
        slots = None
        searching = Searching(ranges, positives, min(capacity, of_task))
        for _, (found, counted) in self.call.run_all(name, _observe_pairs, searching):
            for i, (old, new) in enumerate(zip(observed, found, strict=True)):
                observed[i] = (old[0] + new[0], old[1] + new[1], *_join_kept(old[2:], new[2:], capacity))
            slots = counted if slots is None else slots + counted
        return observed, slots


def _join_kept(a: _Kept, b: _Kept, capacity: int) -> _Kept:
    """Return the scores of both whose hashes end in so many zeros that at most `capacity` are left."""
    (scores, hashes), zeros = (np.concatenate(both) for both in zip(a[:2], b[:2])), max(a[2], b[2])
    while True:
        kept = (hashes & np.uint64(2**zeros - 1)) == 0
        scores, hashes = scores[kept], hashes[kept]
        if len(scores) <= capacity or zeros == 64:
            return scores, hashes, zeros
        zeros += 1


def _begin_pairs(work: Work, queries: Part, gallery: Part | None, zeros: int, capacity: int) -> list[Any]:
    """Return the rows' digests, the scores of the positives, and a sample of the negatives."""
    return _on_pair(work, queries, gallery, _native.begin_pairs, zeros=zeros, capacity=capacity)


def _observe_pairs(work: Work, queries: Part, gallery: Part | None, searching: Searching) -> list[Any]:
    """Return the rows' digests, the negatives observed for each search, and those between the positives."""
    return _on_pair(work, queries, gallery, _native.count_pairs, **searching._asdict())


def _on_pair(
    work: Work, queries: Part, gallery: Part | None, function: Callable[..., Sequence[Any]], **options: Any
) -> list[Any]:
    """Return the rows' digests, and the values of a function of the core of two blocks."""
    parts = [queries] if gallery is None else [queries, gallery]
    relation = Relation(labels=queries.labels, groups=queries.groups)
    if gallery is not None:
        relation = replace(relation, gallery_labels=gallery.labels, gallery_groups=gallery.groups)
    shared = {"similarity": work.options.similarity, "threads": work.options.threads, **options}
    first = parts[0].places, parts[-1].places

    def compute(_: Any, rows: list[npt.NDArray[Any]]) -> Sequence[Any]:
        return function(rows[0], None if gallery is None else rows[1], relation, first=first, **shared)

    return compute_on(parts, work.options.similarity, compute)


def _count_distances(work: Work, queries: Part, gallery: Part | None) -> list[Any]:
    """Return the rows' digests, and the numbers of positive and of negative pairs at each distance."""

    def count(codes: Any, block: Any, of: Relation, *, threads: int | None, **_: Any) -> Sequence[Any]:
        assert of.labels is not None
        arrays = codes, of.labels, block, of.gallery_labels
        groups: Any = {"groups": of.groups, "gallery_groups": of.gallery_groups}
        return _native.count_distances(*arrays, **groups, threads=threads)

    return _on_pair(work, queries, gallery, count)

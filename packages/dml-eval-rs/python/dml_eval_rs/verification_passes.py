"""The ends of a streaming verifier's passes: what they found about each threshold, and what the next one looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dml_eval_rs import _native
from dml_eval_rs.digests import BUCKET
from dml_eval_rs.partial_counts import count_items
from dml_eval_rs.partial_pairs import KeptScores, ObservedNegatives, PartialPairs
from dml_eval_rs.score_order import scores_of, to_order
from dml_eval_rs.verification_rates import accepted_at_most, check_numbers


@dataclass(frozen=True, slots=True)
class Levels:
    """What the passes search for.

    Attributes:
        far: the FARs.
        equal_errors: whether to search for equal errors, too.
        slots: whether to count the negatives between all positives, too.
        threads: number of threads.
    """

    far: Sequence[float]
    equal_errors: bool
    slots: bool
    threads: int | None

    def ranks(self, n_negative: int) -> list[int]:
        """Return, for each FAR, the rank of the first negative that it refuses."""
        return [accepted_at_most(share, n_negative) + 1 for share in self.far]


def end_first_pass(state: PartialPairs, levels: Levels) -> PartialPairs:
    """Return the state at the end of the first pass: with searches, whose next ranges come from the sample.

    Raises:
        ValueError: if items are missing, or no pair is positive or none is negative.
    """
    if not state.found:
        raise ValueError("the first pass had no block; expected at least one")
    if state.found[0][0] != 0 or len(state.found) > 1:
        first = state.found[0][1] if state.found[0][0] == 0 else 0
        last = (state.found[1] if state.found[0][0] == 0 else state.found[0])[0] - 1
        raise ValueError(
            f"items {first} to {last} of the gallery were never given; expected every item from 0 on"
        )
    check_numbers(state.n_positive, state.n_negative)
    if state.distances.size:
        return replace(state, passes=2)
    positives = scores_of(np.sort(to_order(state.positives)))
    ranks = levels.ranks(state.n_negative)
    ranges = _native.begin_searches(
        ranks, levels.equal_errors, positives, state.n_negative, state.sample.scores, threads=levels.threads
    )
    slots = 2 * len(np.unique(to_order(positives))) + 1 if levels.slots else 0
    return replace(
        state,
        passes=2,
        positives=positives,
        sample=KeptScores(),
        ranges=ranges,
        observed=(ObservedNegatives(),) * len(ranges),
        crossings=(None,) * len(ranges),
        slots=np.zeros(slots, np.uint64),
    )


def end_later_pass(state: PartialPairs, levels: Levels) -> PartialPairs:
    """Return the state at the end of a later pass: with the scores that it found, and narrower ranges for the rest.

    Raises:
        ValueError: if items are missing, or their labels differ from those of the first pass.
    """
    if state.counted != state.found:
        raise ValueError(
            f"{count_items(state.counted)} of {count_items(state.found)} items are counted in this pass; expected "
            "all"
        )
    for bucket, labels_sum in state.labels_found.items():
        if state.labels_counted.get(bucket) != labels_sum:
            low, high = bucket * BUCKET, min((bucket + 1) * BUCKET, state.found[0][1]) - 1
            raise ValueError(
                f"the labels of some of the items {low} to {high} differ from those of the first pass; expected "
                "the same labels in each pass"
            )
    open_ = [i for i, crossing in enumerate(state.crossings) if crossing is None]
    ranks = levels.ranks(state.n_negative)
    ranges, crossings = _native.advance_searches(
        [ranks[i] for i in open_ if i < len(ranks)],
        levels.equal_errors and len(ranks) in open_,
        state.positives,
        state.n_negative,
        state.ranges,
        [(o.above, o.inside, o.kept.scores, o.kept.hashes, o.kept.zeros) for o in state.observed],
        threads=levels.threads,
    )
    found = list(state.crossings)
    for i, crossing in zip(open_, crossings, strict=True):
        found[i] = crossing
    remaining = np.array([crossing is None for crossing in crossings], bool)
    return replace(
        state,
        passes=state.passes + 1,
        counted=(),
        labels_counted={},
        crossings=tuple(found),
        ranges=np.ascontiguousarray(ranges[remaining]),
        observed=(ObservedNegatives(),) * int(remaining.sum()),
    )

"""The state of a streaming verifier: positives, a sample of negatives, and the counts of a pass.

Shapes: `P` positives of all blocks together, `S` searches for thresholds, `K` kept scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from dml_eval_rs.digests import add_sums
from dml_eval_rs.partial_counts import Ranges, join_ranges

_Floats = npt.NDArray[np.float64]
_Counts = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class KeptScores:
    """Scores of the negatives whose hashes end in a number of zeros: a sample, or all of them if it is 0.

    Attributes:
        scores: (K,) scores.
        hashes: (K,) a hash of each pair.
        zeros: the number of zeros.
    """

    scores: _Floats = field(default_factory=lambda: np.zeros(0))
    hashes: _Counts = field(default_factory=lambda: np.zeros(0, np.uint64))
    zeros: int = 0

    def join(self, other: KeptScores, capacity: int) -> KeptScores:
        """Return the scores of both, of as many zeros as leave at most `capacity`."""
        scores = np.concatenate([self.scores, other.scores])
        hashes = np.concatenate([self.hashes, other.hashes])
        zeros = max(self.zeros, other.zeros)
        while True:
            kept = (hashes & np.uint64(2**zeros - 1)) == 0
            scores, hashes = scores[kept], hashes[kept]
            if len(scores) <= capacity or zeros == 64:
                return KeptScores(scores, hashes, zeros)
            zeros += 1


@dataclass(frozen=True, slots=True)
class ObservedNegatives:
    """The negatives that a pass found for one search: above its range, inside of it, and the scores of those inside."""

    above: int = 0
    inside: int = 0
    kept: KeptScores = field(default_factory=KeptScores)

    def join(self, other: ObservedNegatives, capacity: int) -> ObservedNegatives:
        """Return the sums, and the scores of both."""
        return ObservedNegatives(
            self.above + other.above, self.inside + other.inside, self.kept.join(other.kept, capacity)
        )


@dataclass(frozen=True, slots=True)
class PartialPairs:
    """The state of a verifier, to be pickled, sent and merged.

    Attributes:
        fingerprint: a digest of the queries and the options. Only states with equal fingerprints can be merged.
        passes: the number of passes that have begun.
        found: the ranges of gallery indices of the first pass.
        counted: the ranges of gallery indices of the present pass.
        n_positive, n_negative: the numbers of pairs.
        positives: (P,) the positives' scores, ascending from the second pass on; empty for codes.
        sample: scores of some negatives, from which the searches begin.
        ranges: (S, 4) two ranges of scores for each search that goes on: one that holds the threshold, and its part for
            this pass.
        observed: what this pass found for each search that goes on.
        crossings: for each search the score that it found, with the negatives above it and at least there, or None.
        slots: negatives between the positives' distinct scores; empty until they are counted.
        distances: (2, bits + 1) positive and negative pairs of codes at each distance; (2, 0) for embeddings.
        labels_found, labels_counted: sums over the labels of the first and of the present pass, which tell labels that
            differ.
    """

    fingerprint: str
    passes: int
    found: Ranges
    counted: Ranges
    n_positive: int
    n_negative: int
    positives: _Floats
    sample: KeptScores
    ranges: _Floats
    observed: tuple[ObservedNegatives, ...]
    crossings: tuple[tuple[float, int, int] | None, ...]
    slots: _Counts
    distances: _Counts
    labels_found: Mapping[int, int]
    labels_counted: Mapping[int, int]


def join_first_pass(
    mine: PartialPairs,
    found: Ranges,
    numbers: tuple[int, int],
    positives: _Floats,
    sample: KeptScores,
    distances: _Counts,
    labels: Mapping[int, int],
    capacity: int,
) -> PartialPairs:
    """Return a state with the pairs of more items, in the first pass."""
    return replace(
        mine,
        found=join_ranges(mine.found, found),
        n_positive=mine.n_positive + numbers[0],
        n_negative=mine.n_negative + numbers[1],
        positives=np.concatenate([mine.positives, positives]),
        sample=mine.sample.join(sample, capacity),
        distances=mine.distances + distances,
        labels_found=add_sums(mine.labels_found, labels),
    )


def join_later_pass(
    mine: PartialPairs,
    counted: Ranges,
    observed: Sequence[ObservedNegatives],
    slots: _Counts,
    labels: Mapping[int, int],
    capacity: int,
) -> PartialPairs:
    """Return a state with the counts of more items, in a later pass."""
    joined = (a.join(b, capacity) for a, b in zip(mine.observed, observed, strict=True))
    return replace(
        mine,
        counted=join_ranges(mine.counted, counted),
        observed=tuple(joined),
        slots=mine.slots + slots if mine.passes == 2 else mine.slots,
        labels_counted=add_sums(mine.labels_counted, labels),
    )

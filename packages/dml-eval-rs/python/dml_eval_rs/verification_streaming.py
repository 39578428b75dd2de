"""Verification with a gallery in blocks: bigger than memory, or spread over machines.

Shapes: `Q` queries, `G` items of a block, `D` dim, `W` bytes per code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.digests import bytes_of, label_sums
from dml_eval_rs.partial_counts import count_items, join_ranges
from dml_eval_rs.partial_pairs import (
    KeptScores,
    ObservedNegatives,
    PartialPairs,
    join_first_pass,
    join_later_pass,
)
from dml_eval_rs.retrieval import SIMILARITIES
from dml_eval_rs.score_order import scores_of, to_order
from dml_eval_rs.verification import VerificationMetric
from dml_eval_rs.verification_counts import Point, measure_crossings, measure_distances
from dml_eval_rs.verification_passes import Levels, end_first_pass, end_later_pass
from dml_eval_rs.verification_rates import Slots
from dml_eval_rs.verification_result import Verification
from dml_eval_rs.verification_sides import METRICS, PairSides, check_far, check_metrics

_HASHED = 4096  # queries hashed at a time
_SAMPLE = 1 << 21  # scores of negatives, 16 bytes each, from which the searches begin
_KEPT = 1 << 22  # scores of negatives, 16 bytes each, that all searches keep together


class StreamingVerifier:
    """A verifier whose gallery comes block by block, with the same bits as one call of `verify` or `verify_codes`.

    Embeddings take two passes over the gallery, and more where a threshold is still open, as among very many pairs;
    codes take one. So passes are a loop::

        verifier = StreamingVerifier(queries, labels)
        while verifier.begin_pass():
            for block, block_labels in gallery():
                verifier.add_block(block, block_labels)
        print(verifier.result())

    Blocks come in any order and any size, also other ones in each pass. Several machines each pass over their own part,
    and exchange `partial_pairs` to `merge` at the end of each pass, before `begin_pass`. Memory holds the positives'
    scores, and of the negatives 2**22 at most, 16 bytes each.

    Args:
        queries: (Q, D) float16, float32 or float64, or uint8 codes (Q, W) with ``similarity="hamming"``. Every query is
            compared with every item of the gallery.
        labels: (Q,) integers, booleans or strings.
        similarity: ``"cosine"``, ``"dot"``, ``"euclidean"`` or ``"hamming"``.
        far, metrics: as in `verify`.
        groups: (Q,) integers, booleans or strings, as in `verify`; each block then comes with its groups.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.

    Raises:
        TypeError: if an array has the wrong dtype.
        ValueError: as `verify`.
    """

    def __init__(
        self,
        queries: npt.ArrayLike,
        labels: npt.ArrayLike,
        *,
        similarity: Literal["cosine", "dot", "euclidean", "hamming"] = "cosine",
        far: Iterable[float] | float = (1e-1, 1e-2, 1e-3, 1e-4),
        groups: npt.ArrayLike | None = None,
        metrics: Sequence[VerificationMetric] = METRICS,  # type: ignore[assignment]
        threads: int | None = None,
    ) -> None:
        self._similarity = arguments.one_of(similarity, "similarity", (*SIMILARITIES, "hamming"))
        self._far, self._wanted = check_far(far), check_metrics(metrics)
        self._threads = arguments.threads(threads)
        self._queries = self._items(queries, "queries")
        self._labels = arguments.labels(labels, "labels", self._queries, "queries")
        self._groups = (
            None if groups is None else arguments.labels(groups, "groups", self._queries, "queries")
        )
        self._is_complete = False
        width = 8 * self._queries.shape[1] + 1 if similarity == "hamming" else 0
        self._state = PartialPairs(
            fingerprint=self._fingerprint(),
            passes=0,
            found=(),
            counted=(),
            n_positive=0,
            n_negative=0,
            positives=np.zeros(0),
            sample=KeptScores(),
            ranges=np.zeros((0, 4)),
            observed=(),
            crossings=(),
            slots=np.zeros(0, np.uint64),
            distances=np.zeros((2, width), np.uint64),
            labels_found={},
            labels_counted={},
        )

    def begin_pass(self) -> bool:
        """Begin the next pass over all blocks, and return whether one is needed.

        Raises:
            ValueError: if blocks of the present pass are missing, its labels differ from those of the first, or no pair
                is positive or none is negative. The verifier is then unchanged.
        """
        state = self._state
        if self._is_complete:
            return False
        if state.passes == 0:
            self._state = replace(state, passes=1)
            return True
        if state.passes == 1:
            self._state = end_first_pass(state, self._levels())
            needed = bool(self._state.observed) or len(self._state.slots) > 0
        else:
            self._state = end_later_pass(state, self._levels())
            needed = bool(self._state.observed)
        self._is_complete = not needed
        return needed

    def add_block(
        self,
        block: npt.ArrayLike,
        labels: npt.ArrayLike,
        first_index: int | None = None,
        *,
        groups: npt.ArrayLike | None = None,
    ) -> None:
        """Compare the queries with a block of the gallery.

        Args:
            block: (G, D) of any float dtype, or (G, W) uint8 codes if the queries are codes.
            labels: (G,) of the queries' labels' kind.
            first_index: the index of the block's first item in the whole gallery; None if it follows the last block.
            groups: (G,) of the queries' groups' kind. Given if and only if the queries' are.

        Raises:
            TypeError: if an array has the wrong dtype.
            ValueError: if shapes don't match, a number isn't finite, the pass had the block before or the first pass
                hadn't, or no pass is needed. The verifier is then unchanged.
        """
        state = self._state
        if state.passes == 0 or self._is_complete:
            when = "every pass is done" if self._is_complete else "no pass has begun"
            raise ValueError(f"{when}; expected blocks while begin_pass() returns True")
        before = state.found if state.passes == 1 else state.counted
        start = (before[-1][1] if before else 0) if first_index is None else first_index
        if not isinstance(start, (int, np.integer)) or not 0 <= start < 2**62:
            raise ValueError(f"first_index is {start!r}; expected an integer from 0 to 2**62 - 1")
        sides, sums = self._sides(block, labels, groups, int(start))
        assert sides.gallery is not None
        ranges = ((int(start), int(start) + len(sides.gallery)),)
        join_ranges(before, ranges)
        if state.passes == 1:
            self._state = self._found(sides, ranges, sums)
            return
        if not any(low <= ranges[0][0] and ranges[0][1] <= high for low, high in state.found):
            raise ValueError(
                f"items {ranges[0][0]} to {ranges[0][1] - 1} were not in the first pass; expected the same items in "
                "each pass"
            )
        observed, slots = _native.count_pairs(
            self._queries,
            sides.labels,
            sides.gallery,
            sides.gallery_labels,  # type: ignore[arg-type]
            state.ranges,
            positives=state.positives,
            slots=state.passes == 2 and "auc" in self._wanted,
            similarity=self._similarity,
            first_item=ranges[0][0],
            capacity=self._capacity(),
            threads=self._threads,
        )
        self._state = join_later_pass(
            state,
            ranges,
            [
                ObservedNegatives(above, inside, KeptScores(scores, hashes, zeros))
                for above, inside, scores, hashes, zeros in observed
            ],
            np.zeros(len(state.slots), np.uint64) if slots is None else slots,
            sums,
            self._capacity(),
        )

    def partial_pairs(self) -> PartialPairs:
        """Return the state so far, to be sent to other machines and merged there."""
        return self._state

    def merge(self, other: PartialPairs | StreamingVerifier) -> None:
        """Merge the pairs of the same queries with other parts of the gallery, in the same pass.

        Args:
            other: the other verifier, or its partial pairs.

        Raises:
            TypeError: for anything else.
            ValueError: if the queries, options or passes differ, or a part of the gallery occurs in both. The verifier
                is then unchanged.
        """
        mine = self._state
        theirs = other._state if isinstance(other, StreamingVerifier) else other
        if not isinstance(theirs, PartialPairs):
            raise TypeError(
                f"other is a {type(other).__name__}; expected a StreamingVerifier, or its partial_pairs()"
            )
        if mine.fingerprint != theirs.fingerprint:
            raise ValueError("the verifiers differ in queries, labels or options; expected the same in both")
        if mine.passes != theirs.passes or mine.passes == 0:
            raise ValueError(
                f"one verifier is in pass {mine.passes} and the other in pass {theirs.passes}; expected the same, "
                "from 1 on: merge what all machines sent, and then begin the next pass"
            )
        if mine.passes == 1:
            self._state = join_first_pass(
                mine,
                theirs.found,
                (theirs.n_positive, theirs.n_negative),
                theirs.positives,
                theirs.sample,
                theirs.distances,
                theirs.labels_found,
                _SAMPLE,
            )
            return
        if mine.found != theirs.found or mine.ranges.tobytes() != theirs.ranges.tobytes():
            raise ValueError(
                f"one verifier holds the first pass of {count_items(mine.found)} items and the other of "
                f"{count_items(theirs.found)}; expected the same: merge all of a pass before the next begins"
            )
        self._state = join_later_pass(
            mine, theirs.counted, theirs.observed, theirs.slots, theirs.labels_counted, self._capacity()
        )

    def result(self) -> Verification:
        """Compute the metrics, once `begin_pass` has returned False.

        Returns:
            The result of `verify`, or `verify_codes`, for the whole gallery.

        Raises:
            ValueError: if another pass is needed.
        """
        state = self._state
        if not self._is_complete:
            raise ValueError(
                "the passes are not done; expected result() after begin_pass() has returned False"
            )
        if self._similarity == "hamming":
            return measure_distances(state.distances[0], state.distances[1], self._far, self._wanted)
        order_P = to_order(state.positives)
        points: list[Point] = []
        for crossing in state.crossings:
            assert crossing is not None
            score, above, at_least = crossing
            (limit,) = to_order(np.array([score])).tolist()
            higher = len(order_P) - int(np.searchsorted(order_P, limit, "right"))
            points.append(
                (score, above, at_least, higher, len(order_P) - int(np.searchsorted(order_P, limit)))
            )
        slots: Slots | None = None
        if "auc" in self._wanted:
            distinct, numbers = np.unique(order_P, return_counts=True)
            slots = scores_of(distinct), numbers.astype(np.uint64), state.slots
        return measure_crossings(points, slots, self._far, self._wanted, state.n_positive, state.n_negative)

    def _found(self, sides: PairSides, ranges: Any, sums: dict[int, int]) -> PartialPairs:
        """Return the state with a block of the first pass."""
        state, numbers = self._state, sides.count_pairs()
        positives, sample, distances = np.zeros(0), KeptScores(), state.distances[:, :0]
        if self._similarity == "hamming":
            distances = np.stack(
                _native.count_distances(
                    self._queries,
                    sides.labels,
                    sides.gallery,
                    sides.gallery_labels,
                    groups=sides.groups,
                    gallery_groups=sides.gallery_groups,
                    threads=self._threads,
                )
            )
        else:
            assert sides.gallery is not None
            positives, kept = _native.begin_pairs(
                self._queries,
                sides.labels,
                sides.gallery,
                sides.gallery_labels,  # type: ignore[arg-type]
                groups=sides.groups,
                block_groups=sides.gallery_groups,
                similarity=self._similarity,
                positives=numbers[0],
                first_item=ranges[0][0],
                zeros=state.sample.zeros,
                capacity=_SAMPLE,
                threads=self._threads,
            )
            sample = KeptScores(*kept)
        return join_first_pass(state, ranges, numbers, positives, sample, distances, sums, _SAMPLE)

    def _levels(self) -> Levels:
        far = self._far if "tar" in self._wanted else []
        return Levels(far, "eer" in self._wanted, "auc" in self._wanted, self._threads)

    def _capacity(self) -> int:
        return _KEPT // max(1, len(self._state.observed))

    def _items(self, x: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
        return arguments.codes(x, name) if self._similarity == "hamming" else arguments.embeddings(x, name)

    def _sides(
        self, block: npt.ArrayLike, labels: npt.ArrayLike, groups: npt.ArrayLike | None, start: int
    ) -> tuple[PairSides, dict[int, int]]:
        items = self._items(block, "block")
        arguments.same_width(items, "block", self._queries, "queries")
        labels_G = arguments.labels(labels, "labels", items, "block")
        if (groups is None) != (self._groups is None):
            given, missing = (
                ("a block's", "the queries'") if self._groups is None else ("the queries'", "a block's")
            )
            raise ValueError(
                f"{given} groups came without {missing}; expected the groups of both, or neither"
            )
        code_Q, code_G = arguments.encode(self._labels, labels_G)
        group_Q = group_G = None
        if groups is not None and self._groups is not None:
            groups_G = arguments.labels(groups, "groups", items, "block")
            group_Q, group_G = arguments.encode(self._groups, groups_G, name="groups")
        sides = PairSides(self._queries, code_Q, items, code_G, group_Q, group_G)
        return sides, label_sums(labels_G, start)

    def _fingerprint(self) -> str:
        options = (
            self._similarity,
            self._far,
            sorted(self._wanted),
            self._queries.shape,
            str(self._queries.dtype),
        )
        digest = hashlib.blake2b(repr(options).encode(), digest_size=16)
        names = [names for names in (self._labels, self._groups) if names is not None]
        digest.update(repr([of.dtype.str for of in names]).encode())
        for start in range(0, len(self._queries), _HASHED):
            part = slice(start, start + _HASHED)
            for array in (self._queries, *names):
                digest.update(bytes_of(array[part]))
        return digest.hexdigest()

"""Evaluation of a gallery in blocks: bigger than memory, or spread over machines.

Shapes: `Q` queries, `G` items of a block, `D` dim, `P` positives of all queries together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.digests import BUCKET, add_sums, bytes_of, label_sums
from dml_eval_rs.evaluation import Evaluation
from dml_eval_rs.lists import check_lists
from dml_eval_rs.metric_names import evaluation_of, metric_names
from dml_eval_rs.partial_counts import (
    LISTED,
    PartialCounts,
    Ranges,
    add_positives,
    check_counts,
    count_items,
    join_ranges,
    order_of,
)
from dml_eval_rs.relation import (
    GradedLists,
    Lists,
    Relation,
    check_indices,
    encode_classes,
    to_special_labels,
)
from dml_eval_rs.retrieval import SIMILARITIES, TIES, UNMATCHED, Ties, Unmatched

_HASHED = 4096  # queries hashed at a time


class StreamingEvaluator:
    """An evaluator of a gallery that comes block by block, with the same bits as one call of `evaluate`.

    It takes two passes over the gallery, since a negative is counted against all of a query's positives:
    `find_positives` for every block, then `count_negatives` for every block, then `result`. Blocks come in any
    order and any size. Several machines each pass over their own part, and exchange `partial_counts` to `merge`
    after each pass.

    Args:
        queries: (Q, D) float16, float32 or float64, or uint8 codes (Q, W) with ``similarity="hamming"``.
        labels: (Q,) integers, booleans or strings. None with `relevant`; blocks then come without labels.
        similarity: ``"cosine"``, ``"dot"``, ``"euclidean"`` or ``"hamming"``.
        groups: (Q,) integers, booleans or strings, as in `evaluate`; each block then comes with its groups.
        relevant, ignored: as in `evaluate`, with indices in the whole gallery, below 2**32.
        junk, distractors: as in `evaluate`: blocks come with their junk, and indices count it.
        recall_at, precision_at, average_precision_at, ndcg_at, recall_share_at, reciprocal_rank_at: as in `evaluate`.
        average_precision, unmatched: as in `evaluate`.
        ties: as in `evaluate`. Indices are those in the whole gallery.
        indices: (Q,) the index of each query in the gallery, by which it is left out, and -1 for queries outside
            the gallery. None: nothing is left out.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.

    Raises:
        TypeError: if an array has the wrong dtype.
        ValueError: as `evaluate`.
    """

    def __init__(
        self,
        queries: npt.ArrayLike,
        labels: npt.ArrayLike | None = None,
        *,
        similarity: Literal["cosine", "dot", "euclidean", "hamming"] = "cosine",
        groups: npt.ArrayLike | None = None,
        relevant: Lists | GradedLists | None = None,
        ignored: Lists | None = None,
        junk: npt.ArrayLike = (),
        distractors: npt.ArrayLike = (),
        recall_at: Iterable[int] = (1, 10, 100, 1000),
        precision_at: Iterable[int] = (),
        average_precision_at: Iterable[int] = (),
        ndcg_at: Iterable[int] = (),
        recall_share_at: Iterable[int] = (),
        reciprocal_rank_at: Iterable[int] = (),
        average_precision: bool = False,
        unmatched: Unmatched = "skip",
        ties: Ties = "index",
        indices: npt.ArrayLike | None = None,
        threads: int | None = None,
    ) -> None:
        self._similarity = arguments.one_of(similarity, "similarity", (*SIMILARITIES, "hamming"))
        self._ties = arguments.one_of(ties, "ties", TIES)
        self._metrics = metric_names(
            recall_at,
            precision_at,
            average_precision_at,
            ndcg_at,
            average_precision,
            recall_share_at,
            reciprocal_rank_at,
        )
        self._unmatched = arguments.one_of(unmatched, "unmatched", UNMATCHED)
        self._threads = arguments.threads(threads)
        self._queries = self._items(queries, "queries")
        n = len(self._queries)
        given = {
            "labels": labels,
            "groups": groups,
            "junk": junk if np.size(junk) else None,
            "distractors": distractors if np.size(distractors) else None,
        }
        for name, value in given.items():
            if relevant is not None and value is not None:
                raise ValueError(f"{name} came with relevant, which replaces labels; expected one of them")
        if labels is None and relevant is None:
            raise TypeError("labels is None; expected the queries' labels, or relevant=(offsets, indices)")
        self._labels = (
            None if labels is None else arguments.labels(labels, "labels", self._queries, "queries")
        )
        self._junk, self._distractors = junk, distractors
        if ignored is not None and np.size(junk):
            raise ValueError("ignored came with junk; expected one of them: list the junk in ignored")
        self._relevant = (
            None if relevant is None else check_lists(relevant, "relevant", n, LISTED, graded=True)
        )
        self._ignored = None if ignored is None else check_lists(ignored, "ignored", n, LISTED)
        self._groups = (
            None if groups is None else arguments.labels(groups, "groups", self._queries, "queries")
        )
        self._query_indices = None if indices is None else check_indices(indices, n, 2**62)
        self._partial = PartialCounts(
            fingerprint=self._fingerprint(),
            found=(),
            counted=(),
            offsets=np.zeros(n + 1, np.uint64),
            keys=np.zeros(0, np.float64),
            indices=np.zeros(0, np.uint64),
            counts=np.zeros(n, np.uint64),
            labels_found={},
            labels_counted={},
        )

    def find_positives(
        self,
        block: npt.ArrayLike,
        labels: npt.ArrayLike | None = None,
        first_index: int | None = None,
        *,
        groups: npt.ArrayLike | None = None,
    ) -> None:
        """Find the positives of a block of the gallery.

        Args:
            block: (G, D) of any float dtype, or (G, W) uint8 codes if the queries are codes.
            labels: (G,) of the queries' labels' kind. Given if and only if the queries' are.
            first_index: the index of the block's first item in the whole gallery; None if it follows the last block.
            groups: (G,) of the queries' groups' kind. Given if and only if the queries' are.

        Raises:
            TypeError: if an array has the wrong dtype.
            ValueError: if shapes don't match, a number isn't finite, the block was found before, or counting has begun.
                The evaluator is then unchanged.
        """
        partial = self._partial
        if partial.counted:
            raise ValueError(
                f"{count_items(partial.counted)} items are counted already; expected every block's positives before "
                "the first count"
            )
        if (groups is None) != (self._groups is None):
            given, missing = (
                ("a block's", "the queries'") if self._groups is None else ("the queries'", "a block's")
            )
            raise ValueError(
                f"{given} groups came without {missing}; expected the groups of both, or neither"
            )
        items, relation, start, sums = self._block(block, labels, first_index, partial.found)
        if groups is not None and self._groups is not None:
            groups_G = arguments.labels(groups, "groups", items, "block")
            group_Q, group_G = arguments.encode(self._groups, groups_G, name="groups")
            kept_G = slice(None) if relation.kept is None else relation.kept
            relation = replace(relation, groups=group_Q, gallery_groups=group_G[kept_G])
        n = len(self._queries)
        found = np.zeros(n + 1, np.uint64), np.zeros(0), np.zeros(0, np.uint64)
        if _takes_part(relation):
            found = _native.find_positives(
                self._queries,
                self._kept(items, relation),
                relation,
                similarity=self._similarity,
                first_item=start,
                threads=self._threads,
            )
        ranges = join_ranges(partial.found, ((start, start + len(items)),))
        self._partial = replace(
            add_positives(self._partial, self._ties, *found, ranges),
            labels_found=add_sums(partial.labels_found, sums),
        )

    def count_negatives(
        self, block: npt.ArrayLike, labels: npt.ArrayLike | None = None, first_index: int | None = None
    ) -> None:
        """Count the negatives of a block of the gallery, after the positives of all blocks are found.

        Args:
            block: (G, D) of any float dtype, or (G, W) uint8 codes if the queries are codes.
            labels: (G,) of the queries' labels' kind. Given if and only if the queries' are.
            first_index: the index of the block's first item in the whole gallery; None if it follows the last block.

        Raises:
            TypeError: if an array has the wrong dtype.
            ValueError: if shapes don't match, a number isn't finite, the block was counted before, or its positives
                were not found. The evaluator is then unchanged.
        """
        partial = self._partial
        items, relation, start, sums = self._block(block, labels, first_index, partial.counted)
        stop = start + len(items)
        if not any(low <= start and stop <= high for low, high in partial.found):
            raise ValueError(
                f"the positives of items {start} to {stop - 1} were not found; expected find_positives "
                "for every block first"
            )
        counts = partial.counts
        if _takes_part(relation):
            counts = _native.count_negatives(
                self._queries,
                self._kept(items, relation),
                relation,
                similarity=self._similarity,
                ties=self._ties,
                metrics=self._metrics,
                first_item=start,
                offsets=partial.offsets,
                keys=partial.keys,
                indices=partial.indices,
                counts=partial.counts,
                threads=self._threads,
            )
        self._partial = replace(
            partial,
            counts=counts,
            counted=join_ranges(partial.counted, ((start, stop),)),
            labels_counted=add_sums(partial.labels_counted, sums),
        )

    def partial_counts(self) -> PartialCounts:
        """Return the state so far, to be sent to other machines and merged there."""
        return self._partial

    def merge(self, other: PartialCounts | StreamingEvaluator) -> None:
        """Merge the positives, or counts, of the same queries in other parts of the gallery.

        Before any counting, the positives are joined. After it, both must hold the same positives, and the
        counts are added.

        Args:
            other: the other evaluator, or its partial counts.

        Raises:
            TypeError: for anything else.
            ValueError: if the queries or options differ, a part of the gallery occurs in both, or the counts can't be
                those of an evaluator. The evaluator is then unchanged.
        """
        mine = self._partial
        theirs = other._partial if isinstance(other, StreamingEvaluator) else other
        if not isinstance(theirs, PartialCounts):
            raise TypeError(
                f"other is a {type(other).__name__}; expected a StreamingEvaluator, or its partial_counts()"
            )
        if mine.fingerprint != theirs.fingerprint:
            raise ValueError("the evaluators differ in queries, labels or options; expected the same in both")
        check_counts(theirs, len(self._queries), self._ties, self._relevant)
        if not mine.counted and not theirs.counted:
            found = join_ranges(mine.found, theirs.found)
            self._partial = replace(
                add_positives(self._partial, self._ties, theirs.offsets, theirs.keys, theirs.indices, found),
                labels_found=add_sums(mine.labels_found, theirs.labels_found),
            )
            return
        same = mine.found == theirs.found and np.array_equal(mine.indices, theirs.indices)
        if not same or not np.array_equal(order_of(mine.keys), order_of(theirs.keys)):
            raise ValueError(
                f"one evaluator holds the positives of {count_items(mine.found)} items and the other of "
                f"{count_items(theirs.found)}; expected the same: merge all positives before counting"
            )
        self._partial = replace(
            mine,
            counts=mine.counts + theirs.counts,
            counted=join_ranges(mine.counted, theirs.counted),
            labels_counted=add_sums(mine.labels_counted, theirs.labels_counted),
        )

    def result(self) -> Evaluation:
        """Compute the evaluation, once every block is counted.

        Returns:
            The result of `evaluate` for the whole gallery; `nmi`, `ami` and `ari` are None.

        Raises:
            ValueError: if some blocks aren't counted, no machine was given some items, the labels of the two passes
                differ, or no query has a match.
        """
        partial = self._partial
        if partial.found != partial.counted or not partial.found:
            raise ValueError(
                f"{count_items(partial.counted)} of {count_items(partial.found)} items are counted; expected all, and "
                "at least one"
            )
        if partial.found[0][0] != 0 or len(partial.found) > 1:
            first, last = (
                (0, partial.found[0][0])
                if partial.found[0][0]
                else (partial.found[0][1], partial.found[1][0])
            )
            raise ValueError(
                f"items {first} to {last - 1} of the gallery were never given; expected every item from 0 on"
            )
        for bucket, labels_sum in partial.labels_found.items():
            if partial.labels_counted.get(bucket) != labels_sum:
                low, high = bucket * BUCKET, min((bucket + 1) * BUCKET, partial.found[0][1]) - 1
                raise ValueError(
                    f"the labels of some of the items {low} to {high} differ between find_positives and "
                    "count_negatives; expected the same labels in both passes"
                )
        for name, lists in (("relevant", self._relevant), ("ignored", self._ignored)):
            if lists is not None and len(lists.items) and lists.items.max() >= count_items(partial.found):
                raise ValueError(
                    f"{name} lists item {lists.items.max()}; expected indices below {count_items(partial.found)}, the "
                    "number of items given"
                )
        if len(partial.keys) == 0 and self._unmatched == "skip":
            raise ValueError(
                f"none of the {len(self._queries)} queries has a match in the gallery; expected a label "
                "that both sides have" + ("" if self._groups is None else ", with different groups")
            )
        found = _native.compute_metrics(
            self._ties,
            self._metrics,
            partial.offsets,
            partial.keys,
            partial.indices,
            partial.counts,
            relation=Relation()
            if self._relevant is None
            else Relation(
                offsets=self._relevant.offsets, items=self._relevant.items, grades=self._relevant.grades
            ),
            zero_unmatched=self._unmatched == "zero",
            threads=self._threads,
        )
        return evaluation_of(found, count_items(partial.found))

    def _items(self, x: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
        return arguments.codes(x, name) if self._similarity == "hamming" else arguments.embeddings(x, name)

    def _kept(self, items: npt.NDArray[Any], relation: Relation) -> npt.NDArray[Any]:
        """Return the codes that aren't junk; the core selects embeddings, without a copy."""
        return items[relation.kept] if self._similarity == "hamming" and relation.kept is not None else items

    def _block(
        self, block: npt.ArrayLike, labels: npt.ArrayLike | None, first_index: int | None, before: Ranges
    ) -> tuple[npt.NDArray[Any], Relation, int, dict[int, int]]:
        items = self._items(block, "block")
        arguments.same_width(items, "block", self._queries, "queries")
        if (labels is None) != (self._labels is None):
            given, missing = (
                ("a block's", "the queries'") if self._labels is None else ("the queries'", "a block's")
            )
            raise ValueError(
                f"{given} labels came without {missing}; expected the labels of both, or relevant instead"
            )
        labels_G = None if labels is None else arguments.labels(labels, "labels", items, "block")
        start = (before[-1][1] if before else 0) if first_index is None else first_index
        if not isinstance(start, (int, np.integer)) or not 0 <= start < 2**62:
            raise ValueError(f"first_index is {start!r}; expected an integer from 0 to 2**62 - 1")
        join_ranges(before, ((int(start), int(start) + len(items)),))
        start, stop = int(start), int(start) + len(items)
        relation = Relation(indices=self._query_indices)
        if labels_G is not None and self._labels is not None:
            (code_Q, code_G), is_junk = encode_classes(
                [self._labels, labels_G], self._junk, self._distractors
            )
            kept = None if is_junk is None else np.flatnonzero(~is_junk).astype(np.uintp)
            code_G = code_G if kept is None else code_G[kept]
            relation = replace(relation, labels=code_Q, gallery_labels=code_G, kept=kept)
        if self._relevant is not None:
            offsets, listed = self._relevant.within(start, stop)
            relation = replace(relation, offsets=offsets, items=listed)
        if self._ignored is not None:
            offsets, listed = self._ignored.within(start, stop)
            relation = replace(relation, left_out_offsets=offsets, left_out_items=listed)
        return items, relation, start, {} if labels_G is None else label_sums(labels_G, start)

    def _fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        options = (
            self._similarity,
            self._ties,
            self._metrics,
            self._unmatched,
            self._queries.shape,
            str(self._queries.dtype),
        )
        digest.update(repr(options).encode())
        names = [names for names in (self._labels, self._groups) if names is not None]
        digest.update(repr([of.dtype.str for of in names]).encode())
        for special, name in ((self._junk, "junk"), (self._distractors, "distractors")):
            digest.update(repr(to_special_labels(special, name).tolist()).encode())
        for lists in (self._relevant, self._ignored):
            arrays = () if lists is None else (lists.offsets, lists.items, lists.grades)
            for array in arrays:
                digest.update(b"none" if array is None else repr(array.shape).encode() + array.tobytes())
            digest.update(b"end")
        for start in range(0, len(self._queries), _HASHED):
            part = slice(start, start + _HASHED)
            digest.update(bytes_of(self._queries[part]))
            for of in names:
                digest.update(bytes_of(of[part]))
            digest.update(b"" if self._query_indices is None else bytes_of(self._query_indices[part]))
        return digest.hexdigest()


def _takes_part(relation: Relation) -> bool:
    """Return whether a block has an item that isn't junk."""
    return relation.kept is None or len(relation.kept) > 0

"""An evaluation of a gallery that comes in blocks: bigger than memory, or spread over machines.

Shapes: `Q` queries, `G` items of a block, `D` dim, `P` positives of all queries together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.evaluation import Evaluation
from dml_eval_rs.retrieval import SIMILARITIES, TIES, Ties, evaluation_of

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Books:
    """What a counter knows: a few numbers a query, to be pickled, sent and merged.

    Attributes:
        fingerprint: of the queries and the options. Only books with the same one can be merged.
        found: ranges of gallery indices whose positives are in.
        counted: ranges of gallery indices whose negatives are counted.
        offsets: (Q + 1,) where each query's positives begin.
        keys: (P,) by each query, descending.
        indices: (P,) of the positives in the whole gallery.
        counts: of the negatives between the positives.
    """

    fingerprint: str
    found: Ranges
    counted: Ranges
    offsets: npt.NDArray[np.uint64]
    keys: npt.NDArray[np.float64]
    indices: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint64]


class Counter:
    """Counts ranks over a gallery that comes block by block, with the same bits as one call of `evaluate`.

    The gallery is gone through twice, since a negative is counted against all of a query's positives:
    `find_positives` for every block, then `count` for every block, then `result`. Blocks come in any order and
    any size. With several machines, each goes through its own part; `books` and `merge` bring them together
    after either pass.

    Args:
        queries: (Q, D) float16, float32 or float64, or uint8 codes (Q, W) with ``similarity="hamming"``.
        labels: (Q,) integers, booleans or strings.
        similarity: ``"cosine"``, ``"dot"``, ``"euclidean"`` or ``"hamming"``.
        recall_at: each K, at least 1.
        ties: as in `evaluate`. Indices are those in the whole gallery.
        indices: (Q,) the index of each query in the gallery if it is part of it, to be left out, and -1 if it
            isn't. None: nothing is left out.
        threads: number of threads; None for all cores that the process may use.

    Raises:
        TypeError: if an array is of the wrong kind.
        ValueError: as `evaluate`.
    """

    def __init__(
        self,
        queries: npt.ArrayLike,
        labels: npt.ArrayLike,
        *,
        similarity: Literal["cosine", "dot", "euclidean", "hamming"] = "cosine",
        recall_at: Iterable[int] = (1, 10, 100, 1000),
        ties: Ties = "index",
        indices: npt.ArrayLike | None = None,
        threads: int | None = None,
    ) -> None:
        self._similarity = arguments.one_of(similarity, "similarity", (*SIMILARITIES, "hamming"))
        self._ties = arguments.one_of(ties, "ties", TIES)
        self._recall_at = arguments.counts(recall_at, "recall_at")
        self._threads = arguments.threads(threads)
        self._queries = self._items(queries, "queries")
        self._labels = arguments.labels(labels, "labels", self._queries, "queries")
        self._itself = None if indices is None else _indices(indices, len(self._queries))
        n = len(self._queries)
        self._books = Books(
            fingerprint=self._fingerprint(),
            found=(),
            counted=(),
            offsets=np.zeros(n + 1, np.uint64),
            keys=np.zeros(0, np.float64),
            indices=np.zeros(0, np.uint64),
            counts=np.zeros(n, np.uint64),
        )

    def find_positives(
        self, block: npt.ArrayLike, labels: npt.ArrayLike, first_index: int | None = None
    ) -> None:
        """Takes in the positives of a block of the gallery.

        Args:
            block: (G, D) of the queries' kind and dtype.
            labels: (G,) of the queries' labels' kind.
            first_index: the index of the block's first item in the whole gallery; None if it follows the last block.

        Raises:
            TypeError: if an array is of the wrong kind.
            ValueError: if shapes don't fit, a number isn't finite, the block was fed before, or counting has begun. The
                counter is then as it was before.
        """
        books = self._books
        if books.counted:
            raise ValueError(
                f"{_size(books.counted)} items are counted already; expected every block's positives before "
                "the first count"
            )
        items, code_Q, code_G, start = self._block(block, labels, first_index, books.found)
        found = _native.find_positives(
            self._queries,
            code_Q,
            items,
            code_G,
            similarity=self._similarity,
            first_item=start,
            itself=self._itself,
            threads=self._threads,
        )
        self._books = self._with_positives(*found, _join(books.found, ((start, start + len(items)),)))

    def count(self, block: npt.ArrayLike, labels: npt.ArrayLike, first_index: int | None = None) -> None:
        """Counts the negatives of a block of the gallery. Every block's positives must be in.

        Args:
            block: (G, D) of the queries' kind and dtype.
            labels: (G,) of the queries' labels' kind.
            first_index: the index of the block's first item in the whole gallery; None if it follows the last block.

        Raises:
            TypeError: if an array is of the wrong kind.
            ValueError: if shapes don't fit, a number isn't finite, the block was counted before, or its
                positives weren't taken in. The counter is then as it was before.
        """
        books = self._books
        items, code_Q, code_G, start = self._block(block, labels, first_index, books.counted)
        stop = start + len(items)
        if not any(low <= start and stop <= high for low, high in books.found):
            raise ValueError(
                f"the positives of items {start} to {stop - 1} were not taken in; expected find_positives "
                "for every block first"
            )
        counts = _native.count(
            self._queries,
            code_Q,
            items,
            code_G,
            similarity=self._similarity,
            ties=self._ties,
            first_item=start,
            offsets=books.offsets,
            keys=books.keys,
            indices=books.indices,
            counts=books.counts,
            threads=self._threads,
        )
        self._books = replace(books, counts=counts, counted=_join(books.counted, ((start, stop),)))

    def books(self) -> Books:
        """What is known so far, to be sent to other machines and merged there."""
        return self._books

    def merge(self, other: Books | Counter) -> None:
        """Takes in what a counter of the same queries found, or counted, in other parts of the gallery.

        Before any counting, the positives are joined. After it, both must hold the same positives, and the
        counts are added.

        Args:
            other: the other counter, or its books.

        Raises:
            ValueError: if the queries or options differ, or a part of the gallery would be taken in twice. The
                counter is then as it was before.
        """
        mine, theirs = self._books, other._books if isinstance(other, Counter) else other
        if mine.fingerprint != theirs.fingerprint:
            raise ValueError("the counters differ in queries, labels or options; expected the same in both")
        if not mine.counted and not theirs.counted:
            found = _join(mine.found, theirs.found)
            self._books = self._with_positives(theirs.offsets, theirs.keys, theirs.indices, found)
            return
        same = mine.found == theirs.found and np.array_equal(mine.indices, theirs.indices)
        if not same or not np.array_equal(mine.keys, theirs.keys):
            raise ValueError(
                f"one counter holds the positives of {_size(mine.found)} items and the other of {_size(theirs.found)}; "
                "expected the same: merge all positives before counting"
            )
        self._books = replace(
            mine, counts=mine.counts + theirs.counts, counted=_join(mine.counted, theirs.counted)
        )

    def result(self) -> Evaluation:
        """The evaluation, once everything is counted.

        Returns:
            What `evaluate` returns for the whole gallery; `nmi` and `ami` are None.

        Raises:
            ValueError: if some blocks aren't counted, or no query has a match.
        """
        books = self._books
        if books.found != books.counted or not books.found:
            raise ValueError(
                f"{_size(books.counted)} of {_size(books.found)} items are counted; expected all, and at least one"
            )
        if len(books.keys) == 0:
            raise ValueError(
                f"none of the {len(self._queries)} queries has a match in the gallery; expected a label "
                "that both sides have"
            )
        columns = _native.close(
            self._ties,
            books.offsets,
            books.keys,
            books.indices,
            books.counts,
            self._recall_at,
            threads=self._threads,
        )
        return evaluation_of(columns, self._recall_at, None, None)

    def _items(self, x: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
        return arguments.codes(x, name) if self._similarity == "hamming" else arguments.embeddings(x, name)

    def _block(
        self, block: npt.ArrayLike, labels: npt.ArrayLike, first_index: int | None, before: Ranges
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint32], npt.NDArray[np.uint32], int]:
        items = self._items(block, "block")
        arguments.same_width(items, "block", self._queries, "queries")
        if items.dtype != self._queries.dtype:
            raise TypeError(f"block has dtype {items.dtype}; expected {self._queries.dtype}, as the queries")
        labels_G = arguments.labels(labels, "labels", items, "block")
        start = (before[-1][1] if before else 0) if first_index is None else first_index
        if not isinstance(start, (int, np.integer)) or not 0 <= start < 2**62:
            raise ValueError(f"first_index is {start!r}; expected an integer from 0 to 2**62 - 1")
        _join(before, ((int(start), int(start) + len(items)),))
        code_Q, code_G = arguments.encode(self._labels, labels_G)
        return items, code_Q, code_G, int(start)

    def _with_positives(
        self,
        offsets: npt.NDArray[np.uint64],
        keys: npt.NDArray[np.float64],
        indices: npt.NDArray[np.uint64],
        found: Ranges,
    ) -> Books:
        books = self._books
        query_P = np.concatenate([_owners(books.offsets), _owners(offsets)])
        keys_P, indices_P = np.concatenate([books.keys, keys]), np.concatenate([books.indices, indices])
        order = np.lexsort((indices_P, -keys_P, query_P))
        n = len(self._queries)
        sizes = np.bincount(query_P, minlength=n)
        wide = 2 if self._ties == "expected" else 1
        return replace(
            books,
            found=found,
            offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64),
            keys=keys_P[order],
            indices=indices_P[order],
            counts=np.zeros(wide * len(keys_P) + n, np.uint64),
        )

    def _fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        options = (
            self._similarity,
            self._ties,
            self._recall_at,
            self._queries.shape,
            str(self._queries.dtype),
        )
        digest.update(repr(options).encode())
        for start in range(0, len(self._queries), 4096):
            digest.update(np.ascontiguousarray(self._queries[start : start + 4096]).tobytes())
        digest.update(repr((self._labels.dtype.str, self._labels.tolist())).encode())
        digest.update(b"" if self._itself is None else self._itself.tobytes())
        return digest.hexdigest()


def _indices(x: npt.ArrayLike, queries: int) -> npt.NDArray[np.int64]:
    array = np.asarray(x)
    if array.dtype.kind not in "iu":
        raise TypeError(f"indices has dtype {array.dtype}; expected integers")
    if array.shape != (queries,):
        raise ValueError(f"indices has shape {array.shape}; expected ({queries},), one a query")
    return np.ascontiguousarray(array, np.int64)


def _owners(offsets: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    edges = offsets.astype(np.int64)
    return np.repeat(np.arange(len(edges) - 1), edges[1:] - edges[:-1])


def _join(a: Ranges, b: Ranges) -> Ranges:
    """Both, in order, adjoining ones made one; an error where they overlap."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted((*a, *b)):
        if joined and low < joined[-1][1]:
            raise ValueError(
                f"items {low} to {min(high, joined[-1][1]) - 1} were fed before; expected every item once a pass"
            )
        if joined and low == joined[-1][1]:
            low = joined.pop()[0]
        joined.append((low, high))
    return tuple(joined)


def _size(ranges: Ranges) -> int:
    return sum(high - low for low, high in ranges)

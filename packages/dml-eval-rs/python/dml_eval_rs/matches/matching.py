"""Check in Python which items match, for example to show search results in a report.

Shapes: `Q` queries, `G` gallery, `n` queries in a block, `K` items per query.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs.arguments import Sides
from dml_eval_rs.matches.labels import Labels
from dml_eval_rs.matches.relation import count_equal, pair_codes, relate
from dml_eval_rs.matches.relevance import Relevance

Booleans = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]
_Codes = npt.NDArray[np.uint32]


class Matching:
    """The matches of queries in a gallery, using the rules of `evaluate`.

    Args:
        labels: (Q,) the queries' labels, or a `Relevance`.
        gallery_labels: (G,); None if a gallery is not used, or if `labels` is a `Relevance`.
        n_items: G. Must be given if `labels` is a `Relevance` for a gallery.

    Raises:
        TypeError, ValueError: as `evaluate`.
    """

    def __init__(
        self,
        labels: npt.ArrayLike | Labels | Relevance,
        gallery_labels: npt.ArrayLike | Labels | None = None,
        n_items: int | None = None,
    ) -> None:
        n_queries = len(labels)  # type: ignore[arg-type]
        if gallery_labels is not None:
            n_items = len(gallery_labels)  # type: ignore[arg-type]
        # These arrays have the right number of rows, but do not use memory.
        rows = [np.broadcast_to(np.float32(0), (n or 0, 1)) for n in (n_queries, n_items)]
        sides = Sides(rows[0], None if n_items is None else rows[1])
        relation = relate(labels, gallery_labels, sides, ("the queries", "the gallery"))
        self._alone, self._queries = n_items is None, n_queries
        self._items = n_queries if n_items is None else n_items
        self._is_listed = relation.offsets is not None
        self._listed = _pairs(relation.offsets, relation.items, self._items)
        self._ignored = _pairs(relation.ignored_offsets, relation.ignored_items, self._items)
        kept = slice(None) if relation.kept is None else relation.kept
        self._is_junk = np.ones(self._items, np.bool_)
        self._is_junk[kept] = False

        def both(
            queries: _Codes | None, gallery: _Codes | None
        ) -> tuple[Integers, Integers] | None:
            """Return the codes of all queries and items, -1 for junk."""
            if queries is None:
                return None
            codes_G = np.full(self._items, -1, np.int64)
            codes_G[kept] = queries if gallery is None else gallery
            return codes_G if gallery is None else queries.astype(np.int64), codes_G

        self._labels = both(relation.labels, relation.gallery_labels)
        groups = both(relation.groups, relation.gallery_groups)
        self._pairs: tuple[Integers, Integers] | None = None  # codes of (label, group)
        if self._labels is not None and groups is not None:
            self._pairs = (
                pair_codes(self._labels[0], groups[0]),
                pair_codes(self._labels[1], groups[1]),
            )

    def matches(self, queries: Integers, items: Integers) -> Booleans:
        """Return (n, K): whether the (n, K) items match the row's query, even if they are
        excluded.
        """
        if self._is_listed:
            return contains(self._listed, queries[:, None] * self._items + items)
        return _equal(self._labels, queries, items) & ~self._is_junk[items]

    def excludes(self, queries: Integers, items: Integers) -> Booleans:
        """Return (n, K): whether the (n, K) items are excluded from the ranking of the row's
        query.
        """
        excluded = self._excluded_by_label(queries, items) | self._is_junk[items]
        return excluded | contains(self._ignored, queries[:, None] * self._items + items)

    @property
    def most_excluded(self) -> int:
        """An upper bound for the number of items excluded per query."""
        most = int(self._alone) + int(self._is_junk.sum())
        if self._pairs is not None:
            most += int(np.unique(self._pairs[1], return_counts=True)[1].max())
        ignored = np.unique(self._ignored // self._items, return_counts=True)[1]
        return most + int(ignored.max(initial=0))

    def has_match(self) -> Booleans:
        """Return (Q,): whether each query's ranking contains a match."""
        return self.count_matches() > 0

    def count_matches(self) -> Integers:
        """Return (Q,): the number of matches in each query's ranking."""
        if self._is_listed:
            return self._count(self._listed, self.excludes)
        assert self._labels is not None
        labels_Q, labels_G = self._labels
        matches_Q = count_equal(labels_Q, labels_G)
        if self._pairs is not None:
            matches_Q -= count_equal(*self._pairs)
        elif self._alone:
            matches_Q -= 1
        matches_Q -= self._count(
            self._ignored, lambda q, i: ~self.matches(q, i) | self._excluded_by_label(q, i)
        )
        return np.where(labels_Q < 0, 0, matches_Q)

    def _excluded_by_label(self, queries: Integers, items: Integers) -> Booleans:
        """Return (n, K): whether an item is the query itself, or shares the query's label and
        group.
        """
        excluded = np.zeros(items.shape, np.bool_)
        if self._alone:
            excluded |= items == queries[:, None]
        if self._pairs is not None:
            excluded |= _equal(self._pairs, queries, items)
        return excluded

    def _count(self, pairs: Integers, drops: Callable[[Integers, Integers], Booleans]) -> Integers:
        """Count the listed pairs per query (Q,), excluding dropped pairs."""
        queries, items = pairs // self._items, pairs % self._items
        counted = queries[~drops(queries, items[:, None])[:, 0]]
        return np.bincount(counted, minlength=self._queries)


def _pairs(offsets: npt.NDArray[np.uint64] | None, items: _Codes | None, n_items: int) -> Integers:
    """Return the listed pairs (M,) as query · G + item, in ascending order."""
    if offsets is None or items is None:
        return np.zeros(0, np.int64)
    queries = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets).astype(np.int64))
    return queries * n_items + items


def contains(pairs: Integers, wanted: Integers) -> Booleans:
    """Return which of the wanted numbers are in sorted `pairs`."""
    if len(pairs) == 0:
        return np.zeros(wanted.shape, np.bool_)
    found: Booleans = pairs[np.searchsorted(pairs, wanted).clip(max=len(pairs) - 1)] == wanted
    return found


def _equal(codes: Any, queries: Integers, items: Integers) -> Booleans:
    same: Booleans = codes[1][items] == codes[0][queries][:, None]
    return same

"""Which gallery items match a query, and which its ranking leaves out: labels, groups, and listed items.

Shapes: `Q` queries, `G` gallery, `M` listed pairs, `n` queries of a block, `K` items of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_train.measure.evaluate import Embedded

Booleans = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ListedPairs:
    """Pairs of a query and a gallery item.

    Args:
        offsets: (Q + 1,).
        keys: (M,) ascending; query · G + item.
        items: G.
    """

    offsets: Integers
    keys: Integers
    items: int

    @classmethod
    def of_lists(cls, lists: tuple[npt.NDArray[Any], ...], items: int) -> ListedPairs:
        """Read a list of `dml_core.Relation`; grade 0 is no match."""
        offsets, indices = (np.asarray(array, np.int64) for array in lists[:2])
        queries_M = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        keys_M = queries_M * items + indices
        if len(lists) == 3:
            kept_M = np.asarray(lists[2]) > 0
            queries_M, keys_M = queries_M[kept_M], keys_M[kept_M]
        counts_Q = np.bincount(queries_M, minlength=len(offsets) - 1)
        return cls(np.concatenate([[0], np.cumsum(counts_Q)]), np.sort(keys_M), items)

    @property
    def counts(self) -> Integers:
        """The number of items listed for each query, (Q,)."""
        return np.diff(self.offsets)

    def pairs(self) -> tuple[Integers, Integers]:
        """Return the queries and the items of all pairs, both (M,)."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.counts), self.keys % self.items

    def contains(self, queries_n: Integers, items_nK: Integers) -> Booleans:
        """Tell which items are listed for their row's query, (n, K)."""
        if not len(self.keys):
            return np.zeros(items_nK.shape, np.bool_)
        wanted_nK = queries_n[:, None] * self.items + items_nK
        place_nK = np.searchsorted(self.keys, wanted_nK).clip(max=len(self.keys) - 1)
        found: Booleans = self.keys[place_nK] == wanted_nK
        return found


class Matching:
    """The matches of the queries, and the items that their rankings leave out.

    Args:
        embedded: its labels, groups and lists; embeddings aren't read.
    """

    def __init__(self, embedded: Embedded) -> None:
        self._alone = embedded.gallery is None
        self._items = len(embedded.embeddings if embedded.gallery is None else embedded.gallery)
        self.labels_Q = np.asarray(embedded.labels)
        self.labels_G = (
            self.labels_Q if embedded.gallery_labels is None else np.asarray(embedded.gallery_labels)
        )
        relation = embedded.relation
        self._relevant = None
        if relation.relevant is not None:
            self._relevant = ListedPairs.of_lists(relation.relevant, self._items)
        self._ignored = None
        if relation.ignored is not None:
            self._ignored = ListedPairs.of_lists(relation.ignored, self._items)
        self._groups: tuple[Integers, Integers] | None = None
        if embedded.groups is not None:
            groups_G = embedded.groups if embedded.gallery_groups is None else embedded.gallery_groups
            both = np.concatenate([np.asarray(embedded.groups), np.asarray(groups_G)])
            codes = np.unique(both, return_inverse=True)[1].reshape(-1)
            self._groups = codes[: len(self.labels_Q)], codes[len(self.labels_Q) :]

    @property
    def most_left_out(self) -> int:
        """The most items that any query leaves out, by group or list, its own item included."""
        most = int(self._alone)
        if self._groups is not None:
            _, codes = np.unique(np.stack([self.labels_G, self._groups[1]]), axis=1, return_inverse=True)
            most = int(np.bincount(codes.reshape(-1)).max())
        if self._ignored is not None:
            most += int(self._ignored.counts.max(initial=0))
        return most

    def left_out(self, queries_n: Integers, items_nK: Integers) -> Booleans:
        """Tell which items the rankings of these queries leave out, (n, K)."""
        out_nK = self._left_out_by_group(queries_n, items_nK)
        if self._ignored is not None:
            out_nK |= self._ignored.contains(queries_n, items_nK)
        return out_nK

    def right(self, queries_n: Integers, items_nK: Integers) -> Booleans:
        """Tell which items match these queries, (n, K), whether left out or not."""
        if self._relevant is not None:
            return self._relevant.contains(queries_n, items_nK)
        same: Booleans = self.labels_G[items_nK] == self.labels_Q[queries_n][:, None]
        return same

    def matched(self) -> Booleans:
        """Tell which queries, (Q,), have a match that they don't leave out."""
        queries = len(self.labels_Q)
        if self._relevant is not None:
            queries_M, items_M = self._relevant.pairs()
            kept_M = ~self.left_out(queries_M, items_M[:, None])[:, 0]
            return np.bincount(queries_M[kept_M], minlength=queries) > 0
        matches_Q = count_equal(self.labels_G, self.labels_Q)
        if self._groups is not None:
            groups_Q, groups_G = self._groups
            matches_Q -= count_equal(
                np.stack([self.labels_G, groups_G], axis=1), np.stack([self.labels_Q, groups_Q], axis=1)
            )
        elif self._alone:
            matches_Q -= 1
        if self._ignored is not None:
            queries_M, items_M = self._ignored.pairs()
            grouped_M = self._left_out_by_group(queries_M, items_M[:, None])[:, 0]
            lost_M = self.right(queries_M, items_M[:, None])[:, 0] & ~grouped_M
            matches_Q -= np.bincount(queries_M[lost_M], minlength=queries)
        return matches_Q > 0

    def _left_out_by_group(self, queries_n: Integers, items_nK: Integers) -> Booleans:
        """Tell which items these queries leave out as themselves, or as of their class and group."""
        out_nK = np.zeros(items_nK.shape, np.bool_)
        if self._alone:
            out_nK |= items_nK == queries_n[:, None]
        if self._groups is not None:
            groups_Q, groups_G = self._groups
            same_label = self.labels_G[items_nK] == self.labels_Q[queries_n][:, None]
            out_nK |= same_label & (groups_G[items_nK] == groups_Q[queries_n][:, None])
        return out_nK


def count_equal(items: npt.NDArray[Any], queries: npt.NDArray[Any]) -> Integers:
    """Count, for each query (a row), the items that are equal to it, (Q,)."""
    _, codes = np.unique(np.concatenate([items, queries]), axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    counts: Integers = np.bincount(codes[: len(items)], minlength=int(codes.max()) + 1)
    return counts[codes[len(items) :]]

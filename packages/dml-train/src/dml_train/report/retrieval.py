"""The nearest items of the queries: examples, and the classes with the lowest recall.

Shapes: `Q` queries, `G` gallery, `K` nearest, `C` classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dml_core import Evaluator, Matching
from dml_train.measure.evaluate import Embedded
from dml_train.report.rendering import select_evenly

_NEAREST = 8
_EXAMPLES = 8  # queries of each kind: nearest item right, nearest item wrong
_WORST = 15
_NEIGHBOURS = 1 << 23  # in memory at a time


class Retrieval(NamedTuple):
    """A query and its nearest items, nearest first."""

    query: int
    items: Sequence[int]  # indices in the gallery
    right: Sequence[bool]


class WorstClass(NamedTuple):
    """A class with low Recall@1, and the class with which it is confused most often."""

    label: int
    query: int  # its first item whose nearest item is of the other class
    items: int  # number of its items with a match
    recall: float  # the share of these items whose nearest item is right
    confused_with: int  # the gallery item nearest to `query`
    times: int  # number of the class's items whose nearest item is of the other class


@dataclass(frozen=True, slots=True)
class NearestNeighbours:
    """The nearest items of every query.

    Args:
        nearest_QK: indices in the gallery, nearest first.
        right_QK: whether they match the query: are of its class, or listed for it.
        matched_Q: whether any item of the gallery that the query's ranking doesn't exclude matches it.
        labels_Q: the queries' classes.
        gallery_labels_G: the gallery items' classes.
    """

    nearest_QK: npt.NDArray[np.int64]
    right_QK: npt.NDArray[np.bool_]
    matched_Q: npt.NDArray[np.bool_]
    labels_Q: npt.NDArray[np.int64]
    gallery_labels_G: npt.NDArray[np.int64]

    @classmethod
    def find(cls, evaluator: Evaluator, embedded: Embedded) -> NearestNeighbours:
        """Search every query in the gallery, or, without a gallery, among the other queries.

        Items that a query's ranking excludes, for their group or by a list, aren't among its nearest.
        """
        matching = embedded.matching()
        nearest_QK = _search(evaluator, embedded, matching)
        right_QK = matching.matches(np.arange(len(nearest_QK)), nearest_QK)
        labels_Q = np.asarray(embedded.labels)
        labels_G = labels_Q if embedded.gallery_labels is None else np.asarray(embedded.gallery_labels)
        return cls(nearest_QK, right_QK, matching.has_match(), labels_Q, labels_G)

    def examples(self, right: bool) -> list[Retrieval]:
        """Select up to eight queries evenly from those whose nearest item is right, or from those where it is wrong."""
        queries = np.flatnonzero(self.matched_Q & (self.right_QK[:, 0] == right))
        return [
            Retrieval(q, self.nearest_QK[q].tolist(), self.right_QK[q].tolist())
            for q in queries[select_evenly(len(queries), _EXAMPLES)].tolist()
        ]

    def class_recalls(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return the number of gallery items, (C,), and Recall@1, (C,), of every class with a matched query."""
        classes, ids_Q = np.unique(self.labels_Q[self.matched_Q], return_inverse=True)
        queries_C = np.bincount(ids_Q, minlength=len(classes))
        right_C = np.bincount(ids_Q, weights=self.right_QK[self.matched_Q, 0], minlength=len(classes))
        counts = Counter(self.gallery_labels_G.tolist())
        return np.array([counts[c] for c in classes.tolist()], dtype=np.int64), right_C / queries_C

    def worst_classes(self) -> list[WorstClass]:
        """Return up to fifteen classes with wrong nearest items, lowest Recall@1 first; of equal ones, larger first."""
        matched = np.flatnonzero(self.matched_Q)
        labels_C, classes, items_C = np.unique(
            self.labels_Q[matched], return_inverse=True, return_counts=True
        )
        right_C = np.bincount(classes, weights=self.right_QK[matched, 0], minlength=len(labels_C))
        recalls_C = right_C / items_C
        found = []
        for c in np.lexsort((labels_C, -items_C, recalls_C))[:_WORST].tolist():
            if right_C[c] == items_C[c]:
                break
            queries = matched[classes == c]
            wrong = queries[~self.right_QK[queries, 0]]
            mistaken = Counter(self.gallery_labels_G[self.nearest_QK[wrong, 0]].tolist())
            other, times = mistaken.most_common(1)[0]
            query = next(q for q in wrong.tolist() if self.gallery_labels_G[self.nearest_QK[q, 0]] == other)
            nearest = int(self.nearest_QK[query, 0])
            found.append(
                WorstClass(int(labels_C[c]), query, int(items_C[c]), float(recalls_C[c]), nearest, times)
            )
        return found


def _search(evaluator: Evaluator, embedded: Embedded, matching: Matching) -> npt.NDArray[np.int64]:
    """Find the nearest items of every query, (Q, K), without those that its ranking excludes."""
    alone = embedded.gallery is None
    gallery = embedded.embeddings if embedded.gallery is None else embedded.gallery
    if embedded.matches is None:
        k = min(_NEAREST, len(gallery) - int(alone))
        return evaluator.nearest(embedded.embeddings, gallery, k, exclude_self=alone)[1]
    k = max(1, min(_NEAREST, len(gallery) - matching.most_excluded))
    wide = min(len(gallery), k + matching.most_excluded)
    nearest_QK = np.empty((len(embedded.embeddings), k), np.int64)
    step = max(1, _NEIGHBOURS // wide)
    for begin in range(0, len(nearest_QK), step):
        block = np.arange(begin, min(begin + step, len(nearest_QK)))
        _, found = evaluator.nearest(embedded.embeddings[block], gallery, wide)
        kept_first = np.argsort(matching.excludes(block, found), axis=1, kind="stable")[:, :k]
        nearest_QK[block] = np.take_along_axis(found, kept_first, axis=1)
    return nearest_QK

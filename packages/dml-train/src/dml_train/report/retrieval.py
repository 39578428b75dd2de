"""The nearest items of the queries: examples, and the classes with the lowest recall.

Shapes: `Q` queries, `G` gallery, `K` nearest, `C` classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dml_core import Evaluator
from dml_train.measure.evaluate import Embedded
from dml_train.report.selection import select_evenly

_NEAREST = 8
_EXAMPLES = 8  # queries of each kind: nearest item right, nearest item wrong
_WORST = 15


@dataclass(frozen=True, slots=True)
class Retrieval:
    """A query and its nearest items, nearest first."""

    query: int
    items: Sequence[int]  # indices in the gallery
    right: Sequence[bool]


@dataclass(frozen=True, slots=True)
class WorstClass:
    """A class with low Recall@1, and the class with which it is confused most often.

    Args:
        label: the class.
        query: its first item whose nearest item is of the other class.
        items: number of its items with a match.
        recall: the share of these items whose nearest item is right.
        confused_with: the gallery item nearest to `query`.
        times: number of the class's items whose nearest item is of the other class.
    """

    label: int
    query: int
    items: int
    recall: float
    confused_with: int
    times: int


@dataclass(frozen=True, slots=True)
class NearestNeighbours:
    """The nearest items of every query.

    Args:
        nearest_QK: indices in the gallery, nearest first.
        right_QK: whether they are of the query's class.
        matched_Q: whether the gallery holds another item of the query's class.
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
        """Search every query in the gallery, or, without a gallery, among the other queries."""
        alone = embedded.gallery is None
        gallery = embedded.embeddings if embedded.gallery is None else embedded.gallery
        labels_Q = np.asarray(embedded.labels)
        labels_G = labels_Q if embedded.gallery_labels is None else np.asarray(embedded.gallery_labels)
        k = min(_NEAREST, len(gallery) - int(alone))
        _, nearest_QK = evaluator.nearest(embedded.embeddings, gallery, k, exclude_self=alone)
        counts = Counter(labels_G.tolist())
        matched_Q = np.array([counts[label] > int(alone) for label in labels_Q.tolist()])
        return cls(nearest_QK, labels_G[nearest_QK] == labels_Q[:, None], matched_Q, labels_Q, labels_G)

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

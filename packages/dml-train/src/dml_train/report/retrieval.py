"""What a search finds: some queries with their nearest items, and the classes that are found worst.

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
from dml_train.report.spread import evenly

_NEAREST = 8
_EACH = 8  # queries of either kind: nearest item right, nearest item wrong
_WORST = 15


@dataclass(frozen=True, slots=True)
class Retrieval:
    """A query and its nearest items, nearest first."""

    query: int
    found: Sequence[int]  # places in the gallery
    right: Sequence[bool]


@dataclass(frozen=True, slots=True)
class WorstClass:
    """A class whose items have the wrong class nearest more often than others.

    Args:
        label: of the class.
        query: its first item that is taken for the class that most are taken for.
        items: how many of its items have a match.
        recall: the share of those whose nearest item is right.
        taken_for: the gallery item nearest to `query`.
        times: how many of the class's items have that item's class nearest.
    """

    label: int
    query: int
    items: int
    recall: float
    taken_for: int
    times: int


@dataclass(frozen=True, slots=True)
class Search:
    """The nearest items of every query.

    Args:
        nearest_QK: places in the gallery, nearest first.
        right_QK: whether they are of the query's class.
        matched_Q: whether the gallery holds any item of the query's class, itself left out.
        labels_Q: the queries' classes.
        gallery_labels_G: those of the gallery.
    """

    nearest_QK: npt.NDArray[np.int64]
    right_QK: npt.NDArray[np.bool_]
    matched_Q: npt.NDArray[np.bool_]
    labels_Q: npt.NDArray[np.int64]
    gallery_labels_G: npt.NDArray[np.int64]

    @classmethod
    def of(cls, evaluator: Evaluator, embedded: Embedded) -> Search:
        """Search every query in the gallery, or among the other queries where there is none."""
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
        """Up to eight queries whose nearest item is right, or wrong, spread evenly over all such."""
        queries = np.flatnonzero(self.matched_Q & (self.right_QK[:, 0] == right))
        return [
            Retrieval(q, self.nearest_QK[q].tolist(), self.right_QK[q].tolist())
            for q in queries[evenly(len(queries), _EACH)].tolist()
        ]

    def class_recalls(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Of every class of which a query has a match: its items in the gallery, (C,), and its Recall@1, (C,)."""
        classes, ids_Q = np.unique(self.labels_Q[self.matched_Q], return_inverse=True)
        queries_C = np.bincount(ids_Q, minlength=len(classes))
        right_C = np.bincount(ids_Q, weights=self.right_QK[self.matched_Q, 0], minlength=len(classes))
        counts = Counter(self.gallery_labels_G.tolist())
        return np.array([counts[c] for c in classes.tolist()], dtype=np.int64), right_C / queries_C

    def worst_classes(self) -> list[WorstClass]:
        """Up to fifteen classes with wrong items, the lowest Recall@1 first; of equals, the one with more items."""
        found = []
        for label in np.unique(self.labels_Q[self.matched_Q]).tolist():
            queries = np.flatnonzero(self.matched_Q & (self.labels_Q == label))
            right = self.right_QK[queries, 0]
            if right.all():
                continue
            wrong = queries[~right]
            mistaken = Counter(self.gallery_labels_G[self.nearest_QK[wrong, 0]].tolist())
            other, times = mistaken.most_common(1)[0]
            query = next(q for q in wrong if self.gallery_labels_G[self.nearest_QK[q, 0]] == other)
            found.append(
                WorstClass(
                    label,
                    int(query),
                    len(queries),
                    float(right.mean()),
                    int(self.nearest_QK[query, 0]),
                    times,
                )
            )
        return sorted(found, key=lambda worst: (worst.recall, -worst.items, worst.label))[:_WORST]

"""Find the queries' nearest items, to show examples and the classes with the lowest recall.

Shapes: `Q` queries, `G` gallery, `K` nearest, `C` classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml_core import Evaluator, Matching
from dml_train.measure.evaluate import Embedded
from dml_train.report.rendering import select_evenly

_NEAREST = 8
_EXAMPLES = 8  # show at most this number of right queries, and of wrong queries
_WORST = 15
_NEIGHBOURS = 1 << 23  # maximum number of nearest items in memory


class Retrieval(NamedTuple):
    """A query and its nearest items, nearest first."""

    query: int
    items: Sequence[int]  # indices in the gallery
    right: Sequence[bool]


class WorstClass(NamedTuple):
    """A class with low Recall@1, and the class that is most often nearest instead."""

    label: int
    query: int  # the first item with a nearest item of the other class
    items: int  # number of items with a match
    recall: float  # the share of these items with a correct nearest item
    confused_with: int  # the gallery item nearest to `query`
    times: int  # number of items with a nearest item of the other class


@dataclass(frozen=True, slots=True)
class NearestNeighbours:
    """The nearest items per query."""

    nearest_QK: npt.NDArray[np.int64]  # indices in the gallery, nearest first
    scores_QK: npt.NDArray[Any]  # similarities or distances, as the evaluator returns
    right_QK: npt.NDArray[np.bool_]  # whether the items match the query, by class or by list
    # Whether the gallery contains a match that the query's ranking doesn't exclude.
    matched_Q: npt.NDArray[np.bool_]
    labels_Q: npt.NDArray[np.int64]  # the queries' classes
    gallery_labels_G: npt.NDArray[np.int64]

    @classmethod
    def find(
        cls, evaluator: Evaluator, embedded: Embedded, most: int = _NEAREST
    ) -> NearestNeighbours:
        """Find each query's nearest items, at most `most`, that the ranking doesn't exclude.

        Search the gallery or, if there is none, the other queries.
        """
        matching = embedded.matching()
        scores_QK, nearest_QK = _search(evaluator, embedded, matching, most)
        right_QK = matching.matches(np.arange(len(nearest_QK)), nearest_QK)
        labels_Q = np.asarray(embedded.labels)
        labels_G = (
            labels_Q if embedded.gallery_labels is None else np.asarray(embedded.gallery_labels)
        )
        return cls(nearest_QK, scores_QK, right_QK, matching.has_match(), labels_Q, labels_G)

    def examples(self, right: bool) -> list[Retrieval]:
        """Select up to eight queries evenly from all with a correct (or, if not `right`, wrong)
        nearest item.
        """
        queries = np.flatnonzero(self.matched_Q & (self.right_QK[:, 0] == right))
        return [
            Retrieval(q, self.nearest_QK[q].tolist(), self.right_QK[q].tolist())
            for q in queries[select_evenly(len(queries), _EXAMPLES)].tolist()
        ]

    def class_recalls(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return the number of gallery items, (C,), and Recall@1, (C,), of classes with queries
        that have a match.
        """
        labels_C, _, items_C, right_C = self._count_by_class()
        counts = Counter(self.gallery_labels_G.tolist())
        return np.array([counts[c] for c in labels_C.tolist()], dtype=np.int64), right_C / items_C

    def worst_classes(self) -> list[WorstClass]:
        """Return up to fifteen classes with wrong nearest items, sorted by Recall@1, lowest first,
        then by size.
        """
        labels_C, classes, items_C, right_C = self._count_by_class()
        matched, recalls_C = np.flatnonzero(self.matched_Q), right_C / items_C
        found = []
        for c in np.lexsort((labels_C, -items_C, recalls_C))[:_WORST].tolist():
            if right_C[c] == items_C[c]:
                break
            queries = matched[classes == c]
            wrong = queries[~self.right_QK[queries, 0]]
            nearest_labels = self.gallery_labels_G[self.nearest_QK[wrong, 0]]
            other, times = Counter(nearest_labels.tolist()).most_common(1)[0]
            query = int(wrong[nearest_labels == other][0])
            nearest = int(self.nearest_QK[query, 0])
            found.append(
                WorstClass(
                    int(labels_C[c]), query, int(items_C[c]), float(recalls_C[c]), nearest, times
                )
            )
        return found

    def _count_by_class(self) -> tuple[npt.NDArray[Any], ...]:
        """Count matched queries per class; return labels, classes of queries, counts, and correct
        counts.
        """
        labels_C, classes, items_C = np.unique(
            self.labels_Q[self.matched_Q], return_inverse=True, return_counts=True
        )
        right_C = np.bincount(classes, self.right_QK[self.matched_Q, 0], len(labels_C))
        return labels_C, classes, items_C, right_C


def _search(
    evaluator: Evaluator, embedded: Embedded, matching: Matching, most: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Find scores and nearest items per query, both (Q, K), except items that the ranking
    excludes.
    """
    exclude_self = embedded.gallery is None
    gallery = embedded.embeddings if embedded.gallery is None else embedded.gallery
    if embedded.matches is None:
        k = min(most, len(gallery) - int(exclude_self))
        return evaluator.nearest(embedded.embeddings, gallery, k, exclude_self=exclude_self)
    k = max(1, min(most, len(gallery) - matching.most_excluded))
    wide = min(len(gallery), k + matching.most_excluded)
    blocks = []
    step = max(1, _NEIGHBOURS // wide)
    for begin in range(0, len(embedded.embeddings), step):
        block = np.arange(begin, min(begin + step, len(embedded.embeddings)))
        scores, found = evaluator.nearest(embedded.embeddings[block], gallery, wide)
        kept_first = np.argsort(matching.excludes(block, found), axis=1, kind="stable")[:, :k]
        blocks.append([np.take_along_axis(array, kept_first, axis=1) for array in (scores, found)])
    scores_QK, nearest_QK = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
    return scores_QK, nearest_QK

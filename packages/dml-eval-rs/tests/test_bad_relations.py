"""Wrong combinations of labels, groups, lists and excluded items raise errors that name the
arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dml_eval_rs import Labels, Relevance, evaluate, knn

X = np.eye(3) + 1
CODES = X.astype(np.uint8)
LABELS = np.array([0, 0, 1])
LISTS = (np.arange(4), np.array([1, 0, 0]))
CODE: Any = {"similarity": "hamming"}

CASES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: evaluate(X, Labels(LABELS, LABELS), X, LABELS), ValueError,
     "labels have groups, but gallery_labels have none; expected groups in both or neither"),
    (lambda: evaluate(X, LABELS, X, Labels(LABELS, LABELS)), ValueError,
     "gallery_labels have groups, but labels have none"),
    (lambda: evaluate(X, Labels(LABELS, LABELS), X, Labels(LABELS, ["a", "b", "c"])), TypeError,
     "groups have dtype int64 and <U1"),
    (lambda: evaluate(X, Labels(LABELS, LABELS)), ValueError,
     "none of the 3 queries has a match"),
    (lambda: evaluate(X, Labels(LABELS, ["a"] * 3), X, Labels(LABELS, ["a"] * 3)), ValueError,
     "none of the 3 queries has a match"),
    (lambda: evaluate(CODES, Labels(LABELS, [1, 1, 1]), **CODE), ValueError,
     "none of the 3 queries has a match"),
    (lambda: evaluate(X, Labels([0, 1, 2], [0, 1, 2])), ValueError,
     "expected at least one label that occurs twice"),
    (lambda: evaluate(X, None), TypeError,  # type: ignore[arg-type]
     r"labels is None; expected labels, Labels\(ids, ...\) or Relevance\(offsets, indices\)"),
    (lambda: evaluate(X, Labels([0, 0])), ValueError,
     r"labels has shape \(2,\); expected \(3,\) to match embeddings \(3, 3\)"),
    (lambda: evaluate(X, LABELS, X, Labels([0, 0])), ValueError,
     r"gallery_labels has shape \(2,\); expected \(3,\) to match gallery \(3, 3\)"),
    (lambda: evaluate(X, Relevance(*LISTS), X, LABELS), ValueError,
     "gallery_labels and a Relevance are both given; expected only one"),
    (lambda: evaluate(X, LABELS, X, Relevance(*LISTS)), TypeError,
     "gallery_labels is a Relevance"),  # type: ignore[arg-type]
    (lambda: evaluate(X, Relevance(*LISTS), metrics="nmi"), ValueError,
     "clustering metrics need all labels; expected no distractors and no Relevance"),
    (lambda: evaluate(X, Labels(LABELS, distractors=1), metrics=["mrr", "ari"]), ValueError,
     "clustering metrics .* expected no distractors"),
    (lambda: evaluate(X, Relevance([0, 1, 3], [1, 0, 0])), ValueError,
     "Relevance lists item 0 for query 1 twice|Relevance has 3 offsets; expected 4"),
    (lambda: evaluate(X, Relevance([0, 1, 2], [1, 0])), ValueError,
     "Relevance has 3 offsets; expected 4, one per query and the end"),
    (lambda: evaluate(X, Relevance([0, 1, 2, 3], [1, 0, 3])), ValueError,
     "Relevance lists item 3 for query 2; expected indices from 0 to 2"),
    (lambda: evaluate(X, Labels(LABELS, ignored=([0, 0, 1, 1], [5]))), ValueError,
     "ignored lists item 5 for query 1; expected indices from 0 to 2"),
    (lambda: evaluate(X, Relevance(*LISTS, ignored=([0, 1], [0]))), ValueError,
     "ignored has 2 offsets; expected 4"),
    (lambda: evaluate(X, Labels(LABELS, ignored=LISTS, junk=1)), ValueError,
     "ignored and junk are both given; expected only one: list the junk in ignored"),
    (lambda: evaluate(X, LABELS, X, Labels(LABELS, ignored=LISTS)), ValueError,
     "gallery_labels have ignored items; pass ignored to the queries' labels instead"),
    (lambda: evaluate(X, Labels(LABELS, junk=1), X, LABELS), ValueError,
     "labels have junk, but there is a gallery; drop these queries, and pass the gallery's junk in "
     "gallery_labels"),
    (lambda: evaluate(X, Labels(LABELS, junk=[0, 1])), ValueError, "all items are junk"),
    (lambda: evaluate(X, Labels(LABELS, junk="a")), TypeError,
     "labels have dtype int64 and|junk has dtype <U1"),
    (lambda: evaluate(X, LABELS, exclude=[0, 1, 2]), ValueError,
     "exclude is given without a gallery"),
    (lambda: evaluate(CODES, LABELS, CODES, LABELS, exclude=[0, 3, -1], **CODE), ValueError,
     "exclude has 3 at index 1; expected -1 to 2"),
    (lambda: knn(X, X, 1, exclude=[0]), ValueError,
     r"exclude has shape \(1,\); expected \(3,\), one per query"),
    (lambda: knn(X, X, 1, exclude=[0.0, 1, 2]), TypeError, "exclude has dtype float64"),
    (lambda: knn(CODES, None, 1, exclude_self=True, exclude=[0, 1, 2], **CODE), ValueError,
     "exclude_self and exclude are both given; expected only one"),
    (lambda: knn(X, X, 3, exclude=[-1, 1, -1]), ValueError,
     "k is 3; expected 1 to 2, the gallery's size without the query itself"),
    (lambda: evaluate(X, LABELS, unmatched="nan"), ValueError,
     "unmatched is 'nan'; expected one of 'skip', 'zero'"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), CASES)
def test_it_is_refused_with_what_came_and_what_was_expected(
    call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_groups_without_a_match_count_as_misses_if_asked() -> None:
    assert evaluate(X, Labels(LABELS, LABELS), unmatched="zero")["recall@1"] == 0


def test_the_row_of_a_number_that_is_not_finite_is_that_in_the_whole_array() -> None:
    x = np.ones((5, 2))
    x[3, 1] = np.nan
    labels = Labels([9, 0, 9, 0, 0], junk=9)
    with pytest.raises(ValueError, match="embeddings row 3 holds NaN"):
        evaluate(x, labels)
    with pytest.raises(ValueError, match="gallery row 3 holds NaN"):
        evaluate(x[:2], [0, 0], x, labels)

"""Wrong groups, lists, grades and metrics are refused, by name, before any work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dml_eval_rs import evaluate, evaluate_codes, knn, knn_codes, relevance_from_labels

X = np.eye(3) + 1
LABELS = np.array([0, 0, 1])
ONE_EACH = (np.arange(4), np.array([1, 0, 0]))

CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "groups of another length": (
        lambda: evaluate(X, LABELS, groups=[1, 2]),
        ValueError,
        r"groups has shape \(2,\); expected \(3,\) to match embeddings \(3, 3\)",
    ),
    "groups of the gallery of another length": (
        lambda: evaluate(X, LABELS, X, LABELS, groups=[1, 2, 3], gallery_groups=[1]),
        ValueError,
        r"gallery_groups has shape \(1,\); expected \(3,\) to match gallery \(3, 3\)",
    ),
    "groups of one side": (
        lambda: evaluate(X, LABELS, X, LABELS, groups=LABELS),
        ValueError,
        "groups came without gallery_groups; expected the groups of both sides",
    ),
    "groups of an absent gallery": (
        lambda: evaluate(X, LABELS, groups=LABELS, gallery_groups=LABELS),
        ValueError,
        "gallery_groups came without a gallery",
    ),
    "groups of two kinds": (
        lambda: evaluate(X, LABELS, X, LABELS, groups=LABELS, gallery_groups=["a", "b", "c"]),
        TypeError,
        "groups have dtype int64 and <U1",
    ),
    "groups that are the labels": (
        lambda: evaluate(X, LABELS, groups=LABELS),
        ValueError,
        "groups leave out every match: all items of a query's label have the query's group, too",
    ),
    "one group of queries and gallery": (
        lambda: evaluate(X, LABELS, X, LABELS, groups=["a"] * 3, gallery_groups=["a"] * 3),
        ValueError,
        "groups leave out every match",
    ),
    "one group of codes": (
        lambda: evaluate_codes(X.astype(np.uint8), LABELS, groups=[1, 1, 1]),
        ValueError,
        "groups leave out every match",
    ),
    "labels without a match, in groups": (
        lambda: evaluate(X, [0, 1, 2], groups=[0, 1, 2]),
        ValueError,
        "expected at least one label that occurs twice",
    ),
    "groups as floats": (
        lambda: evaluate(X, LABELS, groups=[0.5, 1, 2]),
        TypeError,
        "groups has dtype float64",
    ),
    "neither labels nor lists": (lambda: evaluate(X), TypeError, "labels is None; expected"),
    "labels and lists": (
        lambda: evaluate(X, LABELS, relevant=ONE_EACH),
        ValueError,
        "labels came with relevant, which replaces labels",
    ),
    "groups and lists": (
        lambda: evaluate(X, groups=LABELS, relevant=ONE_EACH),
        ValueError,
        "groups came with relevant",
    ),
    "clusters and lists": (
        lambda: evaluate(X, relevant=ONE_EACH, nmi=True),
        ValueError,
        "nmi compares clusters with the labels of all items",
    ),
    "lists without offsets": (
        lambda: evaluate(X, relevant=np.arange(4)),  # type: ignore[arg-type]
        TypeError,
        r"relevant is a ndarray; expected \(offsets, indices\) or \(offsets, indices, grades\)",
    ),
    "four arrays": (
        lambda: evaluate(X, relevant=(*ONE_EACH, [1, 1, 1], [1, 1, 1])),  # type: ignore[arg-type]
        TypeError,
        "relevant is 4 arrays",
    ),
    "offsets of other queries": (
        lambda: evaluate(X, relevant=([0, 1, 3], [1, 0, 0])),
        ValueError,
        "relevant has 3 offsets; expected 4",
    ),
    "unsorted offsets": (
        lambda: evaluate(X, relevant=([0, 2, 1, 3], [1, 0, 0])),
        ValueError,
        "relevant has offsets from 0 to 3; expected them to ascend from 0 to 3",
    ),
    "offsets that end elsewhere": (
        lambda: evaluate(X, relevant=([0, 1, 2, 4], [1, 0, 0])),
        ValueError,
        "relevant has offsets from 0 to 4; expected them to ascend from 0 to 3",
    ),
    "an absent item": (
        lambda: evaluate(X, relevant=([0, 1, 2, 3], [1, 0, 3])),
        ValueError,
        "relevant lists item 3 for query 2; expected indices from 0 to 2",
    ),
    "a negative item": (
        lambda: evaluate(X, relevant=([0, 1, 2, 3], [1, -1, 2])),
        ValueError,
        "relevant lists item -1 for query 1",
    ),
    "an item twice": (
        lambda: evaluate(X, relevant=([0, 3, 3, 3], [1, 2, 1])),
        ValueError,
        "relevant lists item 1 for query 0 twice",
    ),
    "items as floats": (
        lambda: evaluate(X, relevant=([0, 1, 2, 3], [1.0, 0.0, 0.0])),
        TypeError,
        "relevant's indices have dtype float64; expected integers",
    ),
    "a negative grade": (
        lambda: evaluate(X, relevant=(*ONE_EACH, [1, -2, 1])),
        ValueError,
        "relevant has the grade -2.0 for query 1; expected finite numbers from 0",
    ),
    "a grade that is no number": (
        lambda: evaluate(X, relevant=(*ONE_EACH, [1, np.nan, 1])),
        ValueError,
        "relevant has the grade nan for query 1",
    ),
    "grades of another length": (
        lambda: evaluate(X, relevant=(*ONE_EACH, [1, 1])),
        ValueError,
        r"relevant's grades have shape \(2,\); expected \(3,\)",
    ),
    "grades of ignored items": (
        lambda: evaluate(X, LABELS, ignored=(*ONE_EACH, [1, 1, 1])),  # type: ignore[arg-type]
        TypeError,
        r"ignored is 3 arrays; expected \(offsets, indices\)",
    ),
    "ignored items and junk": (
        lambda: evaluate(X, LABELS, ignored=ONE_EACH, junk=1),
        ValueError,
        "ignored came with junk",
    ),
    "junk alone": (lambda: evaluate(X, LABELS, junk=[0, 1]), ValueError, "all items are junk"),
    "junk of another kind": (lambda: evaluate(X, LABELS, junk="a"), TypeError, "labels have dtype int64 and"),
    "no match left": (
        lambda: evaluate(X, LABELS, groups=[0, 0, 0]),
        ValueError,
        "groups leave out every match",
    ),
    "own items without a gallery": (
        lambda: evaluate(X, LABELS, indices=[0, 1, 2]),
        ValueError,
        "indices came without a gallery",
    ),
    "an absent own item": (
        lambda: evaluate_codes(X.astype(np.uint8), LABELS, X.astype(np.uint8), LABELS, indices=[0, 3, -1]),
        ValueError,
        "indices has 3 at 1; expected -1, or an index from 0 to 2",
    ),
    "own items of other queries": (
        lambda: knn(X, X, 1, indices=[0]),
        ValueError,
        r"indices has shape \(1,\); expected \(3,\)",
    ),
    "own items as floats": (
        lambda: knn(X, X, 1, indices=[0.0, 1, 2]),
        TypeError,
        "indices has dtype float64",
    ),
    "own items in two ways": (
        lambda: knn_codes(X.astype(np.uint8), None, 1, exclude_self=True, indices=[0, 1, 2]),
        ValueError,
        "exclude_self came with indices",
    ),
    "more neighbours than others": (
        lambda: knn(X, X, 3, indices=[-1, 1, -1]),
        ValueError,
        "k is 3; expected 1 to 2, the gallery's size without the query itself",
    ),
    "a K of 0": (
        lambda: evaluate(X, LABELS, ndcg_at=(5, 0)),
        ValueError,
        "a K of ndcg_at is 0; expected at least 1",
    ),
    "a negative K": (
        lambda: evaluate(X, LABELS, precision_at=-1),
        ValueError,
        "a K of precision_at is -1",
    ),
    "a K that is no integer": (
        lambda: evaluate(X, LABELS, average_precision_at=2.5),  # type: ignore[arg-type]
        TypeError,
        "average_precision_at is 2.5; expected integers",
    ),
    "a K for the whole ranking": (
        lambda: evaluate(X, LABELS, average_precision=10),  # type: ignore[arg-type]
        TypeError,
        "average_precision is 10; expected True or False",
    ),
    "an unknown rule for unmatched queries": (
        lambda: evaluate(X, LABELS, unmatched="nan"),  # type: ignore[arg-type]
        ValueError,
        "unmatched is 'nan'; expected one of 'skip', 'zero'",
    ),
    "single labels for sets": (
        lambda: relevance_from_labels(["a", "b"]),
        TypeError,
        "labels has 'a' at 0; expected a set of labels",
    ),
    "an array and sets": (
        lambda: relevance_from_labels(np.eye(2), [{1}]),
        TypeError,
        "one of labels and gallery_labels is an array",
    ),
    "columns of other labels": (
        lambda: relevance_from_labels(np.eye(2), np.eye(3)),
        ValueError,
        r"gallery_labels has shape \(3, 3\); expected 2 columns",
    ),
    "counts of labels": (
        lambda: relevance_from_labels(np.array([[2, 0]])),
        ValueError,
        "labels has entries other than 0 and 1",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_with_what_came_and_what_was_expected(case: str) -> None:
    call, error, message = CASES[case]
    with pytest.raises(error, match=message):
        call()


def test_groups_without_a_match_count_as_misses_where_asked() -> None:
    assert evaluate(X, LABELS, groups=LABELS, unmatched="zero").recall[1] == 0


def test_the_row_of_a_number_that_is_not_finite_is_that_in_the_whole_array() -> None:
    x = np.ones((5, 2))
    x[3, 1] = np.nan
    with pytest.raises(ValueError, match="embeddings row 3 holds NaN"):
        evaluate(x, [9, 0, 9, 0, 0], junk=9)
    with pytest.raises(ValueError, match="gallery row 3 holds NaN"):
        evaluate(x[:2], [0, 0], x, [9, 0, 9, 0, 0], junk=9)

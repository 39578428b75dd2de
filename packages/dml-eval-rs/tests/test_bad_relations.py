"""Wrong combinations of labels, groups, lists and own items are refused, by name, before any work."""

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

CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "groups of one side": (
        lambda: evaluate(X, Labels(LABELS, LABELS), X, LABELS),
        ValueError,
        "labels have groups, but gallery_labels have none; expected groups on both sides, or on neither",
    ),
    "groups of the gallery alone": (
        lambda: evaluate(X, LABELS, X, Labels(LABELS, LABELS)),
        ValueError,
        "gallery_labels have groups, but labels have none",
    ),
    "groups of two kinds": (
        lambda: evaluate(X, Labels(LABELS, LABELS), X, Labels(LABELS, ["a", "b", "c"])),
        TypeError,
        "groups have dtype int64 and <U1",
    ),
    "groups that are the labels": (
        lambda: evaluate(X, Labels(LABELS, LABELS)),
        ValueError,
        "groups exclude every match: all items of a query's label have the query's group, too",
    ),
    "one group of queries and gallery": (
        lambda: evaluate(X, Labels(LABELS, ["a"] * 3), X, Labels(LABELS, ["a"] * 3)),
        ValueError,
        "groups exclude every match",
    ),
    "one group of codes": (
        lambda: evaluate(CODES, Labels(LABELS, [1, 1, 1]), **CODE),
        ValueError,
        "groups exclude every match",
    ),
    "labels without a match, in groups": (
        lambda: evaluate(X, Labels([0, 1, 2], [0, 1, 2])),
        ValueError,
        "expected at least one label that occurs twice",
    ),
    "no labels": (
        lambda: evaluate(X, None),  # type: ignore[arg-type]
        TypeError,
        r"labels is None; expected an array of labels, Labels\(ids, ...\) or Relevance\(offsets, indices\)",
    ),
    "labels of another length": (
        lambda: evaluate(X, Labels([0, 0])),
        ValueError,
        r"labels has shape \(2,\); expected \(3,\) to match embeddings \(3, 3\)",
    ),
    "gallery labels of another length": (
        lambda: evaluate(X, LABELS, X, Labels([0, 0])),
        ValueError,
        r"gallery_labels has shape \(2,\); expected \(3,\) to match gallery \(3, 3\)",
    ),
    "lists and gallery labels": (
        lambda: evaluate(X, Relevance(*LISTS), X, LABELS),
        ValueError,
        "gallery_labels came with a Relevance, which lists the matches",
    ),
    "lists for the gallery's labels": (
        lambda: evaluate(X, LABELS, X, Relevance(*LISTS)),  # type: ignore[arg-type]
        TypeError,
        "gallery_labels is a Relevance",
    ),
    "clusters and lists": (
        lambda: evaluate(X, Relevance(*LISTS), metrics="nmi"),
        ValueError,
        "metrics of clusters compare clusters with the labels of all items",
    ),
    "clusters and distractors": (
        lambda: evaluate(X, Labels(LABELS, distractors=1), metrics=["mrr", "ari"]),
        ValueError,
        "metrics of clusters .* expected labels without distractors",
    ),
    "lists of other queries": (
        lambda: evaluate(X, Relevance([0, 1, 3], [1, 0, 0])),
        ValueError,
        "Relevance lists item 0 for query 1 twice|Relevance has 3 offsets; expected 4",
    ),
    "lists of fewer queries": (
        lambda: evaluate(X, Relevance([0, 1, 2], [1, 0])),
        ValueError,
        "Relevance has 3 offsets; expected 4: the start of each query's items, and the end",
    ),
    "an absent item": (
        lambda: evaluate(X, Relevance([0, 1, 2, 3], [1, 0, 3])),
        ValueError,
        "Relevance lists item 3 for query 2; expected indices from 0 to 2",
    ),
    "an absent ignored item": (
        lambda: (
            evaluate(X, LABELS, X[:2], Labels(LABELS[:2]))
            and evaluate(X, Labels(LABELS, ignored=([0, 0, 1, 1], [5])))
        ),
        ValueError,
        "ignored lists item 5 for query 1; expected indices from 0 to 2",
    ),
    "ignored items of other queries": (
        lambda: evaluate(X, Relevance(*LISTS, ignored=([0, 1], [0]))),
        ValueError,
        "ignored has 2 offsets; expected 4",
    ),
    "ignored items and junk": (
        lambda: evaluate(X, Labels(LABELS, ignored=LISTS, junk=1)),
        ValueError,
        "ignored came with junk; expected one of them: list the junk in ignored",
    ),
    "ignored items of the gallery": (
        lambda: evaluate(X, LABELS, X, Labels(LABELS, ignored=LISTS)),
        ValueError,
        "gallery_labels have ignored items; expected them in labels, with a list for each query",
    ),
    "junk of the queries beside a gallery": (
        lambda: evaluate(X, Labels(LABELS, junk=1), X, LABELS),
        ValueError,
        "labels have junk beside a gallery; drop these queries, and name the gallery's junk in gallery_labels",
    ),
    "junk alone": (lambda: evaluate(X, Labels(LABELS, junk=[0, 1])), ValueError, "all items are junk"),
    "junk of another kind": (
        lambda: evaluate(X, Labels(LABELS, junk="a")),
        TypeError,
        "labels have dtype int64 and|junk has dtype <U1",
    ),
    "own items without a gallery": (
        lambda: evaluate(X, LABELS, exclude=[0, 1, 2]),
        ValueError,
        "exclude came without a gallery",
    ),
    "an absent own item": (
        lambda: evaluate(CODES, LABELS, CODES, LABELS, exclude=[0, 3, -1], **CODE),
        ValueError,
        "exclude has 3 at 1; expected -1, or an index from 0 to 2",
    ),
    "own items of other queries": (
        lambda: knn(X, X, 1, exclude=[0]),
        ValueError,
        r"exclude has shape \(1,\); expected \(3,\), one per query",
    ),
    "own items as floats": (
        lambda: knn(X, X, 1, exclude=[0.0, 1, 2]),
        TypeError,
        "exclude has dtype float64",
    ),
    "own items in two ways": (
        lambda: knn(CODES, None, 1, exclude_self=True, exclude=[0, 1, 2], **CODE),
        ValueError,
        "exclude_self came with exclude; expected one of them",
    ),
    "more neighbours than others": (
        lambda: knn(X, X, 3, exclude=[-1, 1, -1]),
        ValueError,
        "k is 3; expected 1 to 2, the gallery's size without the query itself",
    ),
    "an unknown rule for unmatched queries": (
        lambda: evaluate(X, LABELS, unmatched="nan"),  # type: ignore[arg-type]
        ValueError,
        "unmatched is 'nan'; expected one of 'skip', 'zero'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_with_what_came_and_what_was_expected(case: str) -> None:
    call, error, message = CASES[case]
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

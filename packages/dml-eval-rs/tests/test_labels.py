"""`Labels` and `Relevance` are checked once, when they are created; a label of -1 causes a
warning.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dml_eval_rs import (
    Labels,
    Relevance,
    evaluate,
    evaluate_levels,
    evaluate_shards,
    evaluate_ties,
    relevance_from_labels,
    verify,
)

X = np.eye(4) + 1
IDS = np.array([0, 0, 1, 1])
OFFSETS, INDICES = [0, 1, 2, 3, 4], [1, 0, 3, 2]
LISTS = (OFFSETS, INDICES)

CASES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: Labels([0.5, 1]), TypeError, r"ids has dtype float64; .*floats merge large ids"),
    (lambda: Labels(np.eye(3, dtype=int)), ValueError, r"ids has shape \(3, 3\); .*ids.argmax"),
    (lambda: Labels(["a", None]), ValueError, "ids has a missing value at index 1"),
    (lambda: Labels(IDS, [1, 2]), ValueError,
     r"groups has shape \(2,\); expected \(4,\), one per label"),
    (lambda: Labels(IDS, [0.5, 1, 2, 3]), TypeError, "groups has dtype float64"),
    (lambda: Labels(IDS, junk=0.5), TypeError, "junk has dtype float64"),
    (lambda: Labels(IDS, junk=[[1], [2]]), ValueError, r"junk has shape \(2, 1\)"),
    (lambda: Labels(IDS, distractors=[0.5]), TypeError, "distractors has dtype float64"),
    (lambda: Labels(IDS, ignored=np.arange(4)), TypeError,
     r"ignored is a ndarray; expected \(offsets, indices\)"),  # type: ignore[arg-type]
    (lambda: Labels(IDS, ignored=(*LISTS, [1, 1, 1, 1])), TypeError,  # type: ignore[arg-type]
     r"ignored is 3 arrays; expected \(offsets, indices\)"),
    (lambda: Labels(IDS, ignored=([0, 2], [3, 3])), ValueError,
     "ignored lists item 3 for query 0 twice"),
    (lambda: Relevance(*LISTS, ignored=([0, 2], [3])), ValueError,
     "ignored has offsets from 0 to 2; expected nondecreasing offsets from 0 to 1"),
    (lambda: Relevance([0, 2, 1, 3], [1, 0, 0]), ValueError,
     "Relevance has offsets from 0 to 3; expected nondecreasing offsets from 0 to 3"),
    (lambda: Relevance([0, 1, 2, 4], [1, 0, 0]), ValueError,
     "Relevance has offsets from 0 to 4; expected nondecreasing offsets from 0 to 3"),
    (lambda: Relevance([], []), ValueError, "Relevance has offsets without an entry"),
    (lambda: Relevance([[0, 1]], [1]), ValueError,
     r"Relevance's offsets have shape \(1, 2\); expected one dimension"),
    (lambda: Relevance([0, 1, 2], [1, -1]), ValueError,
     "Relevance lists item -1 for query 1; expected gallery indices, at least 0"),
    (lambda: Relevance([0, 3, 3], [1, 2, 1]), ValueError,
     "Relevance lists item 1 for query 0 twice; expected distinct items per query"),
    (lambda: Relevance([0, 1], [1.0]), TypeError,
     "Relevance's indices have dtype float64; expected integers"),
    (lambda: Relevance(*LISTS, [1, -2, 1, 1]), ValueError,
     r"Relevance has the grade -2.0 for query 1; expected 0 to 2\*\*53"),
    (lambda: Relevance(*LISTS, [1, np.nan, 1, 1]), ValueError,
     "Relevance has the grade nan for query 1"),
    (lambda: Relevance(*LISTS, [1, 1]), ValueError,
     r"Relevance's grades have shape \(2,\); expected \(4,\), one per index"),
    (lambda: Relevance(*LISTS, list("abcd")), TypeError, "Relevance's grades have dtype <U1"),
    (lambda: relevance_from_labels(["a", "b"]), TypeError,
     "labels has 'a' at index 0; expected a set of labels"),
    (lambda: relevance_from_labels(np.eye(2), [{1}]), TypeError,
     "one of labels and gallery_labels is an array"),
    (lambda: relevance_from_labels(np.eye(2), np.eye(3)), ValueError,
     r"gallery_labels has shape \(3, 3\); expected 2 columns"),
    (lambda: relevance_from_labels(np.array([[2, 0]])), ValueError,
     "labels has entries other than 0 and 1"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), CASES)
def test_they_refuse_wrong_arrays_when_they_are_made(
    call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_they_are_frozen_and_have_lengths() -> None:
    labels, relevance = Labels(IDS, ["a", "b", "a", "b"], junk=1), Relevance(*LISTS, [1, 2, 0, 1])
    assert (len(labels), len(relevance)) == (4, 4)
    for record, field in ((labels, "ids"), (labels, "junk"), (relevance, "items")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, field, None)
    with pytest.raises((AttributeError, TypeError)):
        labels.camera = 1  # type: ignore[attr-defined]
    assert labels.groups is not None
    assert labels.groups.tolist() == ["a", "b", "a", "b"]
    assert (labels.junk.tolist(), labels.distractors.tolist()) == ([1], [])


def test_a_relevance_is_sorted_without_items_of_grade_0() -> None:
    relevance = Relevance([0, 3, 3, 4], [5, 2, 7, 1], [1, 3, 0, 2])
    assert relevance.offsets.tolist() == [0, 2, 2, 3]
    assert relevance.indices.tolist() == [2, 5, 1]
    assert relevance.grades is not None
    assert relevance.grades.tolist() == [3, 1, 2]
    assert Relevance([0, 0], []).grades is None


def test_labels_of_a_plain_array_are_those_of_labels() -> None:
    for ids in (IDS, ["a", "a", "b", "b"], iter(["a", "a", "b", "b"])):
        assert evaluate(X, Labels(ids)) == evaluate(X, IDS)
    assert evaluate(X, Labels(IDS), X[:3], IDS[:3]) == evaluate(X, IDS, X[:3], Labels(IDS[:3]))


def test_labels_are_checked_once_for_many_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, relevance = Labels(IDS, ignored=LISTS), Relevance(*LISTS)
    expected = evaluate(X, labels, unmatched="zero"), evaluate(X, relevance)
    from dml_eval_rs.matches import labels as labels_module
    from dml_eval_rs.matches import relevance as relevance_module

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("checked again")

    monkeypatch.setattr(labels_module, "check_ignored", refuse)
    monkeypatch.setattr(relevance_module, "check_lists", refuse)
    assert (evaluate(X, labels, unmatched="zero"), evaluate(X, relevance)) == expected


SIDES = Labels([-1, 0, 0, -1])
CALLS: dict[str, Callable[[], Any]] = {
    "evaluate": lambda: evaluate(X, [-1, 0, 0, -1]),
    "evaluate of Labels": lambda: evaluate(X, SIDES),
    "evaluate of a gallery": lambda: evaluate(X, [1, 0, 0, 1], -X, [-1, 0, 1, -1]),
    "evaluate of groups": lambda: evaluate(X, Labels([-1, 0, 0, -1], [1, 2, 3, 4])),
    "evaluate of other junk": lambda: evaluate(X, Labels([-1, 0, 0, 5], junk=5), unmatched="zero"),
    "evaluate_ties": lambda: evaluate_ties(X, [-1, 0, 0, -1]),
    "evaluate_levels": lambda: evaluate_levels(X, {"fine": [-1, 0, 0, -1]}),
    "evaluate_shards": lambda: evaluate_shards([X], [-1, 0, 0, -1]),
    "verify": lambda: verify(X, [-1, 0, 0, -1]),
    "verify of Labels": lambda: verify(X, SIDES),
}


@pytest.mark.parametrize("name", CALLS)
def test_minus_one_among_labels_is_warned_of_with_the_remedy(name: str) -> None:
    with pytest.warns(
        UserWarning, match=r"-1 is the only negative label .*Labels\(ids, junk=-1\)"
    ) as warned:
        CALLS[name]()
    assert len(warned) == 1
    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    "labels",
    [
        Labels([-1, 0, 0, -1], junk=-1),
        Labels([-1, 0, 0, -1], junk=[7, -1]),
        Labels([-1, 0, 0, -1], distractors=-1),
        [-2, -2, -1, -1],
        [0, 0, 1, 1],
        [True, False, True, False],
        ["-1", "-1", "0", "0"],
        np.array([2**64 - 1, 0, 0, 2**64 - 1], np.uint64),
    ],
    ids=[
        "junk",
        "junk of two",
        "distractors",
        "negative",
        "positive",
        "booleans",
        "text",
        "unsigned",
    ],
)
def test_other_labels_are_not_warned_of(labels: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(X, labels)


def test_junk_is_dropped_from_the_rankings_and_the_queries() -> None:
    rng = np.random.default_rng(0)
    x, ids = rng.normal(size=(60, 4)), rng.integers(-1, 5, 60)
    kept = ids >= 0
    found, expected = evaluate(x, Labels(ids, junk=-1)), evaluate(x[kept], ids[kept])
    assert dict(found) == dict(expected)
    assert (found.n_queries, found.n_gallery) == (60, 60)
    assert found.n_unmatched == (~kept).sum() + expected.n_unmatched
    for name, values in expected.per_query.items():
        np.testing.assert_array_equal(found.per_query[name][kept], values)
        assert np.isnan(found.per_query[name][~kept]).all()
    beside = evaluate(x[kept][:9], ids[kept][:9], x, Labels(ids, junk=-1))
    assert dict(beside) == dict(evaluate(x[kept][:9], ids[kept][:9], x[kept], ids[kept]))


def test_verify_drops_junk_and_rejects_distractors() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(-1, 5, 60)
    x, kept = rng.normal(size=(6, 4))[ids] + rng.normal(size=(60, 4)), ids >= 0
    assert verify(x, Labels(ids, junk=-1)) == verify(x[kept], ids[kept])
    alone = np.where(kept, ids, 100 + np.arange(60))
    assert verify(x, Labels(ids, distractors=-1)) == verify(x, alone)

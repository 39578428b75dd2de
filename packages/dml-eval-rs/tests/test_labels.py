"""`Labels` and `Relevance` check themselves once, when they are made; -1 among labels is warned of."""

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

CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "floats": (lambda: Labels([0.5, 1]), TypeError, r"ids has dtype float64; .*floats merge large ids"),
    "a table": (lambda: Labels(np.eye(3, dtype=int)), ValueError, r"ids has shape \(3, 3\); .*ids.argmax"),
    "a missing label": (lambda: Labels(["a", None]), ValueError, "ids has a missing value at index 1"),
    "groups of another length": (
        lambda: Labels(IDS, [1, 2]),
        ValueError,
        r"groups has shape \(2,\); expected \(4,\), one group per label",
    ),
    "groups as floats": (lambda: Labels(IDS, [0.5, 1, 2, 3]), TypeError, "groups has dtype float64"),
    "junk as floats": (lambda: Labels(IDS, junk=0.5), TypeError, "junk has dtype float64"),
    "a table of junk": (lambda: Labels(IDS, junk=[[1], [2]]), ValueError, r"junk has shape \(2, 1\)"),
    "distractors as floats": (
        lambda: Labels(IDS, distractors=[0.5]),
        TypeError,
        "distractors has dtype float64",
    ),
    "ignored items without offsets": (
        lambda: Labels(IDS, ignored=np.arange(4)),  # type: ignore[arg-type]
        TypeError,
        r"ignored is a ndarray; expected \(offsets, indices\)",
    ),
    "grades of ignored items": (
        lambda: Labels(IDS, ignored=(*LISTS, [1, 1, 1, 1])),  # type: ignore[arg-type]
        TypeError,
        r"ignored is 3 arrays; expected \(offsets, indices\)",
    ),
    "an ignored item twice": (
        lambda: Labels(IDS, ignored=([0, 2], [3, 3])),
        ValueError,
        "ignored lists item 3 for query 0 twice",
    ),
    "ignored items of a Relevance": (
        lambda: Relevance(*LISTS, ignored=([0, 2], [3])),
        ValueError,
        "ignored has offsets from 0 to 2; expected them to ascend from 0 to 1",
    ),
    "unsorted offsets": (
        lambda: Relevance([0, 2, 1, 3], [1, 0, 0]),
        ValueError,
        "Relevance has offsets from 0 to 3; expected them to ascend from 0 to 3",
    ),
    "offsets that end elsewhere": (
        lambda: Relevance([0, 1, 2, 4], [1, 0, 0]),
        ValueError,
        "Relevance has offsets from 0 to 4; expected them to ascend from 0 to 3",
    ),
    "no offsets": (lambda: Relevance([], []), ValueError, "Relevance has offsets without an entry"),
    "a table of offsets": (
        lambda: Relevance([[0, 1]], [1]),
        ValueError,
        r"Relevance's offsets have shape \(1, 2\); expected one dimension",
    ),
    "a negative item": (
        lambda: Relevance([0, 1, 2], [1, -1]),
        ValueError,
        "Relevance lists item -1 for query 1; expected indices of the gallery, from 0 on",
    ),
    "an item twice": (
        lambda: Relevance([0, 3, 3], [1, 2, 1]),
        ValueError,
        "Relevance lists item 1 for query 0 twice; expected each item once per query",
    ),
    "items as floats": (
        lambda: Relevance([0, 1], [1.0]),
        TypeError,
        "Relevance's indices have dtype float64; expected integers",
    ),
    "a negative grade": (
        lambda: Relevance(*LISTS, [1, -2, 1, 1]),
        ValueError,
        r"Relevance has the grade -2.0 for query 1; expected finite numbers from 0 to 2\*\*53",
    ),
    "a grade that is no number": (
        lambda: Relevance(*LISTS, [1, np.nan, 1, 1]),
        ValueError,
        "Relevance has the grade nan for query 1",
    ),
    "grades of another length": (
        lambda: Relevance(*LISTS, [1, 1]),
        ValueError,
        r"Relevance's grades have shape \(2,\); expected \(4,\), one per index",
    ),
    "grades of text": (
        lambda: Relevance(*LISTS, list("abcd")),
        TypeError,
        "Relevance's grades have dtype <U1",
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
def test_they_refuse_wrong_arrays_when_they_are_made(case: str) -> None:
    make, error, message = CASES[case]
    with pytest.raises(error, match=message):
        make()


def test_they_are_frozen_and_have_lengths() -> None:
    labels, relevance = Labels(IDS, ["a", "b", "a", "b"], junk=1), Relevance(*LISTS, [1, 2, 0, 1])
    assert (len(labels), len(relevance)) == (4, 4)
    for record, field in ((labels, "ids"), (labels, "junk"), (relevance, "listed")):
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
    with pytest.warns(UserWarning, match=r"-1 is the only negative label .*Labels\(ids, junk=-1\)") as warned:
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
    ids=["junk", "junk of two", "distractors", "negative", "positive", "booleans", "text", "unsigned"],
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
    assert (found.n_queries, found.n_unmatched, found.n_gallery) == (
        60,
        (~kept).sum() + expected.n_unmatched,
        60,
    )
    for name, values in expected.per_query.items():
        np.testing.assert_array_equal(found.per_query[name][kept], values)
        assert np.isnan(found.per_query[name][~kept]).all()
    beside = evaluate(x[kept][:9], ids[kept][:9], x, Labels(ids, junk=-1))
    assert dict(beside) == dict(evaluate(x[kept][:9], ids[kept][:9], x[kept], ids[kept]))


@pytest.mark.parametrize("similarity", ["cosine", "euclidean", "hamming"])
def test_clusters_are_of_all_items_but_junk(similarity: Any) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(-1, 5, 90)
    x = rng.normal(size=(6, 16))[ids] + rng.normal(size=(90, 16))
    if similarity == "hamming":
        x = np.packbits(x > 0, axis=1)
    kept, options = ids >= 0, {"similarity": similarity, "metrics": ["nmi", "map@r", "ami", "ari"]}
    own, expected = evaluate(x, Labels(ids, junk=-1), **options), evaluate(x[kept], ids[kept], **options)
    assert dict(own) == dict(expected)
    queries = (x[kept][:20], ids[kept][:20])
    beside = evaluate(*queries, x, Labels(ids, junk=-1), **options)
    assert dict(beside) == dict(evaluate(*queries, x[kept], ids[kept], **options))


def test_verify_drops_junk_and_rejects_distractors() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(-1, 5, 60)
    x, kept = rng.normal(size=(6, 4))[ids] + rng.normal(size=(60, 4)), ids >= 0
    assert verify(x, Labels(ids, junk=-1)) == verify(x[kept], ids[kept])
    alone = np.where(kept, ids, 100 + np.arange(60))
    assert verify(x, Labels(ids, distractors=-1)) == verify(x, alone)

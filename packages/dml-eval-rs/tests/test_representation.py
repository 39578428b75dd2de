"""An evaluation in the hand: compared, printed, in a notebook, and in help()."""

from __future__ import annotations

import dataclasses
import pydoc

import numpy as np
import pytest

from dml_eval_rs import Evaluation, Interval, evaluate

RNG = np.random.default_rng(3)
LABELS = np.arange(40) % 8
X = RNG.normal(size=(40, 4)) + 2 * np.eye(8, 4)[LABELS]


@pytest.fixture(scope="module")
def result() -> Evaluation:
    return evaluate(X, LABELS)


def test_equal_evaluations_are_equal(result: Evaluation) -> None:
    assert result == evaluate(X, LABELS)
    assert result != evaluate(X[::-1], LABELS)
    assert result != "an evaluation"
    other = {**result.per_query, "map_at_r": result.per_query["map_at_r"] + 1e-9}
    assert result != dataclasses.replace(result, per_query=other)
    unmatched = LABELS.copy()
    unmatched[0] = 99
    assert evaluate(X, unmatched) == evaluate(X, unmatched)  # NaN of the unmatched query


def test_no_k_beyond_the_gallery_is_printed(result: Evaluation) -> None:
    assert [name for name, _ in result.rows()][:3] == ["Recall@1", "Recall@10", "R-precision"]
    assert result.recall[1000] == 1
    assert [name for name, _ in evaluate(X, LABELS, recall_at=(50, 60)).rows()][:2] == [
        "Recall@50",
        "Recall@60",
    ]
    gallery = evaluate(X[:5], LABELS[:5], X[5:], LABELS[5:], recall_at=(35, 36))
    assert gallery.n_gallery == 35
    assert next(name for name, _ in gallery.rows()) == "Recall@35"
    assert "Recall@36" not in str(gallery)


def test_precision_at_1_is_printed_where_recall_at_1_is_not(result: Evaluation) -> None:
    assert "Precision@1" not in str(result)
    assert "Precision@1" in str(evaluate(X, LABELS, recall_at=(5,)))


def test_a_notebook_shows_the_table(result: Evaluation) -> None:
    html = result._repr_html_()
    assert html.startswith("<table>")
    for name, value in result.rows():
        assert f">{name}</th><td>{value}</td>" in html


def test_intervals_and_comparisons_are_printed_for_people(result: Evaluation) -> None:
    assert str(Interval(0.123456789, 0.2, 0.95)) == "0.1235 to 0.2000 (95 %)"
    assert str(Interval(0.0, 1.0, 0.999)) == "0.0000 to 1.0000 (99.9 %)"
    text = str(result.compare(result, "recall@1"))
    assert text == "recall@1: difference +0.0000, 0.0000 to 0.0000 (95 %), p = 1.0000, 40 queries"


def test_help_begins_with_the_docstring() -> None:
    lines = pydoc.render_doc(Evaluation, renderer=pydoc.plaintext).splitlines()
    assert lines[2].startswith("class Evaluation")
    assert "Retrieval metrics" in lines[3]

"""Open-set identification, compared with the slow reference."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from eval_support import retrieval_reference
from eval_support.scores_reference import score
from eval_support.small_rows import small_rows
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import Labels, open_set

SIMILARITIES = ("cosine", "dot", "euclidean", "hamming")
FAR = (0.9, 0.5, 1 / 3, 0.1)
X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
LABELS = np.arange(40) % 36


@pytest.mark.parametrize("similarity", SIMILARITIES)
@given(data=st.data())
def test_rates_are_those_of_all_thresholds(similarity: Any, data: Any) -> None:
    dim = data.draw(st.sampled_from([1, 2, 9]))
    x = data.draw(small_rows(dim, similarity=similarity))
    gallery = (
        None if data.draw(st.booleans()) else data.draw(small_rows(dim, similarity=similarity))
    )
    items = x if gallery is None else gallery

    def labels_of(rows: int) -> list[int]:
        drawn: list[int] = data.draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows))
        return drawn

    labels = labels_of(len(x))
    item_labels = labels if gallery is None else labels_of(len(items))
    _, order = retrieval_reference.nearest(x, items, 1, similarity, gallery is None)
    known, unknown = [], []
    for q, (nearest,) in enumerate(order):
        s = score(x[q], items[nearest], similarity)
        others = [label for i, label in enumerate(item_labels) if gallery is not None or i != q]
        if labels[q] in others:
            known.append((s, item_labels[nearest] == labels[q]))
        else:
            unknown.append(s)
    arguments: Any = (x, labels) if gallery is None else (x, labels, gallery, item_labels)
    if not known or not unknown:
        with pytest.raises(ValueError, match="expected some, not all"):
            open_set(*arguments, similarity=similarity)
        return
    found = open_set(*arguments, similarity=similarity, far=FAR)
    assert (found.n_known, found.n_unknown) == (len(known), len(unknown))
    for far in FAR:
        accepted = {
            t: sum(s >= t for s in unknown) for t in [math.inf, *unknown, *(s for s, _ in known)]
        }
        allowed = [t for t, n in accepted.items() if n / len(unknown) <= far]
        rates = [Fraction(sum(right and s >= t for s, right in known), len(known)) for t in allowed]
        assert found.dir[far] == float(max(rates))
        refused = max(t for t, n in accepted.items() if n / len(unknown) > far)
        assert found.threshold[far] == math.nextafter(refused, math.inf)


def test_distractors_are_unknown_and_junk_is_excluded() -> None:
    rng = np.random.default_rng(1)
    names = np.array(["a", "b", "far", "bad"])[rng.integers(0, 4, 40)]
    found = open_set(X, Labels(names, distractors="far", junk="bad"), far=0.5)
    kept = names != "bad"
    alone = np.where(names == "far", [f"far {i}" for i in range(40)], names)
    assert found == open_set(X[kept], alone[kept], far=0.5)


def test_the_result_is_ready_for_json() -> None:
    found = open_set(X, LABELS, far=0.5)
    assert found.to_dict() == {
        "dir@far=0.5": found.dir[0.5],
        "threshold/dir@far=0.5": found.threshold[0.5],
        "n_known": 8,
        "n_unknown": 32,
    }
    assert found.to_csv().splitlines()[0] == "metric,value"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: open_set(X, LABELS, far=1.5), "far contains 1.5"),
        (lambda: open_set(X, Labels(LABELS, LABELS)), "labels have groups"),
        (lambda: open_set(X, np.arange(40)),
         "0 of 40 labels are in the gallery; expected some, not all"),
        (lambda: open_set(X, np.zeros(40, int)),
         "40 of 40 labels are in the gallery; expected some, not all"),
        (lambda: open_set(X, LABELS, X), "gallery is given without gallery_labels"),
        (lambda: open_set(np.full_like(X, np.inf), LABELS), "row 0 holds NaN"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_errors_say_what_came_and_what_was_expected(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()

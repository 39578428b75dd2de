"""Suspect labels compared with a slow reference, and on labels that were changed on purpose."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from eval_support.scores_reference import score
from eval_support.small_rows import small_rows
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import suspect_labels


def _reference(
    x: Any, labels: list[int], k: int, groups: list[int], temperature: float
) -> tuple[list[float], list[bool], list[int]]:
    """Score items by dicts of votes, from the definition."""
    n, shares = len(labels), []
    for i in range(n):
        by_cosine = sorted(
            (-score(x[i], x[j], "cosine"), j) for j in range(n) if groups[j] != groups[i]
        )[:k]
        weights = [math.exp((by_cosine[0][0] - minus) / temperature) for minus, _ in by_cosine]
        votes: dict[int, float] = {}
        for weight, (_, j) in zip(weights, by_cosine):
            votes[labels[j]] = votes.get(labels[j], 0.0) + weight / math.fsum(weights)
        shares.append(votes)
    own = [shares[i].get(labels[i], 0.0) for i in range(n)]
    members = {c: [i for i in range(n) if labels[i] == c] for c in labels}
    threshold = {c: sum(own[i] for i in items) / len(items) for c, items in members.items()}

    joint: dict[int, dict[int, int]] = {c: {} for c in members}
    for i in range(n):
        confident = [c for c, p in shares[i].items() if p >= threshold[c] - 1e-9]
        if confident:
            best = max(confident, key=lambda c: (round(shares[i][c], 9), c == labels[i], -c))
            joint[labels[i]][best] = joint[labels[i]].get(best, 0) + 1
    pruned = set()
    for c, row in joint.items():
        for y in row.keys() - {c}:
            most = round(row[y] * len(members[c]) / sum(row.values()))
            tried = [i for i in members[c] if shares[i].get(y, 0.0) > own[i] + 1e-9]
            pruned |= {*sorted(tried, key=lambda i: (-round(shares[i][y] - own[i], 9), i))[:most]}

    scores, suggested = [], []
    for i in range(n):
        others = {c: round(p, 9) for c, p in shares[i].items() if c != labels[i]}
        best = min(others, key=lambda c: (-others[c], c), default=labels[i])
        highest = shares[i][best] if others else 0.0
        scores.append((highest + 0.05) / (highest + own[i] + 0.1))
        suggested.append(best)
    return scores, [i in pruned for i in range(n)], suggested


@given(data=st.data(), temperature=st.sampled_from([0.07, 1.0, 30.0]), grouped=st.booleans())
def test_scores_and_suggestions_are_those_of_the_definition(
    data: Any, temperature: float, grouped: bool
) -> None:
    # Many items tie exactly, but no two angles are equally far from a third, which only rounding
    # would order.
    places = st.sampled_from([0, 0.2, 0.5, 0.9, 1.4, 2.0, 2.7])
    angle = np.array(data.draw(st.lists(places, min_size=3, max_size=16)))
    x = np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32)
    n = len(x)
    labels = data.draw(
        st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(lambda y: len({*y}) > 1)
    )
    groups = [*range(n)]
    if grouped:
        groups = data.draw(
            st.lists(st.integers(0, 2), min_size=n, max_size=n).filter(lambda y: len({*y}) > 1)
        )
    k = data.draw(st.integers(1, n - 1))
    found = suspect_labels(x, labels, k, groups if grouped else None, temperature=temperature)
    scores, pruned, suggested = _reference(x, labels, k, groups, temperature)
    assert found.suggested.tolist() == suggested
    assert found.pruned.tolist() == pruned
    np.testing.assert_allclose(
        found.score, scores, rtol=0, atol=2e-6
    )  # similarities are reported as float32
    assert found.score.dtype == found.distance.dtype == np.float64
    assert ((found.score >= 0) & (found.score <= 1)).all()


@given(data=st.data())
def test_near_duplicates_with_different_labels_are_the_pairs_above_the_cosine(data: Any) -> None:
    x = data.draw(small_rows(2, most=12))
    n = len(x)
    labels = (np.arange(n) % 3 == 0).astype(int)
    if n < 3:
        return
    found = suspect_labels(x, labels, n - 1, duplicate=0.9)
    cosines = {
        (i, j): np.float32(score(x[i], x[j], "cosine"))
        for j in range(n)
        for i in range(j)
        if labels[i] != labels[j]
    }
    expected = [pair for pair, cosine in cosines.items() if cosine >= np.float32(0.9)]
    expected.sort(key=lambda pair: (-cosines[pair], pair))
    assert [tuple(pair) for pair in found.duplicates.tolist()] == expected


def _clusters(seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(30), 12)
    return (rng.normal(size=(30, 16))[labels] + 0.2 * rng.normal(size=(360, 16))).astype(
        "f"
    ), labels


def test_changed_labels_rank_first_and_the_old_labels_are_suggested() -> None:
    x, labels = _clusters()
    changed = np.random.default_rng(1).choice(360, 30, replace=False)
    given = labels.copy()
    given[changed] = (labels[changed] + 7) % 30
    names = np.char.add("class ", given.astype(str))
    found = suspect_labels(x, names)
    assert {*np.argsort(-found.score)[:30]} == {*changed}
    assert {*np.flatnonzero(found.pruned)} == {*changed}
    assert found.suggested[changed].tolist() == [f"class {label}" for label in labels[changed]]


def test_a_group_whose_labels_are_wrong_together_is_found_by_the_other_groups() -> None:
    x, labels = _clusters()
    groups = np.arange(360) % 4
    given = labels.copy()
    wrong = (groups == 2) & (labels < 10)
    x[wrong] += 0.3  # the images of a group look alike, so that they are each other's neighbours
    given[wrong] = labels[wrong] + 10
    assert (suspect_labels(x, given, 2).score[wrong] < 0.5).any()
    found = suspect_labels(x, given, 5, groups)
    assert (found.suggested[wrong] == labels[wrong]).mean() > 0.9
    assert found.score[wrong].min() > np.quantile(found.score[~wrong], 0.9)


def test_the_distance_to_the_last_neighbour_finds_an_outlier() -> None:
    x, labels = _clusters()
    x[5] = -x[labels == 20].mean(0) * 3
    found = suspect_labels(x, labels, 4)
    assert found.distance.argmax() == 5
    lonely = suspect_labels(np.eye(3, 4), [0, 1, 1], 2, groups=[0, 0, 1])
    assert lonely.distance.tolist() == [math.inf, math.inf, 1.0]


def test_memory_does_not_grow_with_the_number_of_classes() -> None:
    n = 6000
    x = np.random.default_rng(0).normal(size=(n, 4)).astype("f")
    tracemalloc.start()
    suspect_labels(x, np.arange(n) // 2, 5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < n * (n // 2)  # bytes: a table of items times classes would take eight times this


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [1, 1, 1, 1]}, "all 4 labels are equal; expected at least two classes"),
        ({"labels": [1, 2]}, r"labels has shape \(2,\); expected \(4,\)"),
        (
            {"groups": [3, 3, 3, 3]},
            "all 4 groups are equal, but only items of other groups vote; omit groups",
        ),
        ({"groups": [3]}, r"groups has shape \(1,\); expected \(4,\)"),
        ({"k": 4}, "k is 4; expected 1 to 3"),
        ({"temperature": 0}, "temperature is 0.0; expected a number above 0"),
        ({"duplicate": 2}, "duplicate is 2.0; expected a cosine from -1 to 1"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    arguments = {"embeddings": np.eye(4), "labels": [0, 0, 1, 1], "k": 2} | change
    with pytest.raises(ValueError, match=message):
        suspect_labels(**arguments)

"""Matches and excluded items (groups, lists, queries themselves, junk), compared with the slow reference."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from eval_support import retrieval_reference as reference
from eval_support.assertions import assert_same_bits
from eval_support.matches import call, listed
from eval_support.peers import ThreadPeer, run_together
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import Evaluation, Labels, Relevance, evaluate, knn, relevance_from_labels

TIES = ("index", "optimistic", "pessimistic", "expected")
SIMILARITIES = ("cosine", "dot", "euclidean", "hamming")
METRICS = [
    "recall@1", "recall@3", "precision@1", "r_precision", "map@r", "mrr", "precision@2", "map@2", "ndcg@3",
    "ir_recall@2", "mrr@3", "map", "minp",
]  # fmt: skip
# Means over orders are sums of a few rounded products; other metrics are a division, or a sum of R divisions.
TOLERANCE = 1e-12


@st.composite
def sides(draw: st.DrawFn, similarity: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Draw queries, and sometimes a gallery, that often tie."""
    low, high = (0, 3) if similarity == "hamming" else (-2, 2)
    dtype = (
        np.uint8 if similarity == "hamming" else draw(st.sampled_from([np.float16, np.float32, np.float64]))
    )

    def rows() -> np.ndarray:
        row = st.lists(st.integers(low, high), min_size=2, max_size=2).filter(any)
        return np.array(draw(st.lists(row, min_size=2, max_size=7)), dtype)

    return rows(), draw(st.none() | st.builds(rows))


def assert_same(found: Evaluation, expected: dict[str, np.ndarray]) -> None:
    assert list(found.per_query) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found.per_query[name], values, rtol=0, atol=TOLERANCE, err_msg=name)
        np.testing.assert_allclose(found[name], np.nanmean(values), rtol=0, atol=TOLERANCE, err_msg=name)


def assert_measured_as_the_reference_does(*given: Any, **options: Any) -> None:
    """Compare with the reference, or check the error if no query has a match."""
    options["metrics"] = METRICS
    expected = reference.evaluate(*given, **options)
    if np.isnan(expected["mrr"]).all():
        with pytest.raises(ValueError, match="has a match"):
            call(evaluate, *given, **options)
    else:
        assert_same(call(evaluate, *given, **options), expected)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("similarity", SIMILARITIES)
@given(data=st.data())
def test_labels_groups_junk_and_own_items_are_those_of_the_reference(
    similarity: str, ties: str, data: Any
) -> None:
    x, gallery = data.draw(sides(similarity))
    n_items = len(x if gallery is None else gallery)

    def codes(n: int) -> np.ndarray:
        return np.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))

    labels, gallery_labels = codes(len(x)), None if gallery is None else codes(n_items)
    options: dict[str, Any] = {"similarity": similarity, "ties": ties}
    options["unmatched"] = data.draw(st.sampled_from(["skip", "zero"]))
    if data.draw(st.booleans()):
        options["groups"] = codes(len(x))
        options["gallery_groups"] = None if gallery is None else codes(n_items)
    special = st.lists(st.integers(0, 3), max_size=1)
    options["junk"], options["distractors"] = data.draw(special), data.draw(special)
    given_items = (labels if gallery is None else gallery_labels).tolist()  # type: ignore[union-attr]
    if set(given_items) <= set(options["junk"]):
        options["junk"] = []
    if gallery is not None and data.draw(st.booleans()):
        own = st.integers(-1, n_items - 1)
        options["exclude"] = np.array(data.draw(st.lists(own, min_size=len(x), max_size=len(x))))
    items = st.sets(st.integers(0, n_items - 1), max_size=3)
    if not options["junk"] and data.draw(st.booleans()):
        options["ignored"] = data.draw(st.lists(items, min_size=len(x), max_size=len(x)))
    assert_measured_as_the_reference_does(x, labels, gallery, gallery_labels, **options)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("similarity", SIMILARITIES)
@given(data=st.data())
def test_listed_matches_and_grades_are_those_of_the_reference(similarity: str, ties: str, data: Any) -> None:
    x, gallery = data.draw(sides(similarity))
    n_items = len(x if gallery is None else gallery)
    options: dict[str, Any] = {"similarity": similarity, "ties": ties}
    options["unmatched"] = data.draw(st.sampled_from(["skip", "zero"]))
    grade = st.sampled_from([0, 1, 2, 0.5]) if data.draw(st.booleans()) else st.just(1)
    matches = st.dictionaries(st.integers(0, n_items - 1), grade, max_size=5)
    options["relevant"] = data.draw(st.lists(matches, min_size=len(x), max_size=len(x)))
    if gallery is not None and data.draw(st.booleans()):
        own = st.integers(-1, n_items - 1)
        options["exclude"] = np.array(data.draw(st.lists(own, min_size=len(x), max_size=len(x))))
    items = st.sets(st.integers(0, n_items - 1), max_size=3)
    if data.draw(st.booleans()):
        options["ignored"] = data.draw(st.lists(items, min_size=len(x), max_size=len(x)))
    assert_measured_as_the_reference_does(x, None, gallery, **options)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("separate", [False, True])
def test_listing_the_items_of_each_label_gives_the_bits_of_labels(
    similarity: str, ties: Any, separate: bool
) -> None:
    """Use more than one task and block of the screen, and large classes, which are counted from tables."""
    rng = np.random.default_rng(0)
    for classes in (4, 300):
        labels = rng.integers(0, classes, 900)
        x = rng.integers(1, 4, (900, 3)).astype(np.uint8 if similarity == "hamming" else np.float32)
        sets = [{label} for label in labels.tolist()]
        relevant = relevance_from_labels(sets[:200] if separate else sets, sets if separate else None)
        options: dict[str, Any] = {"similarity": similarity, "ties": ties, "metrics": METRICS}
        if separate:
            options["exclude"] = np.where(rng.random(200) < 0.5, np.arange(200), -1)
            by_lists = evaluate(x[:200], relevant, x, **options)
            by_labels = evaluate(x[:200], labels[:200], x, labels, **options)
        else:
            by_lists, by_labels = evaluate(x, relevant, **options), evaluate(x, labels, **options)
        assert_same_bits(by_lists, by_labels)


@pytest.mark.parametrize("large", [False, True], ids=["small classes", "large classes"])
def test_the_rule_of_reidentification_is_that_of_market_1501(large: bool) -> None:
    """Compare with a loop like the protocol: drop junk and the query's identity in its camera, then CMC and AP."""
    rng = np.random.default_rng(0)
    # -1 is junk, and 0 are distractors, which are not used as queries.
    identities = rng.integers(-1, 4 if large else 60, 700)
    cameras = rng.integers(0, 6, 700)
    x = rng.normal(size=(700, 8)) + np.random.default_rng(1).normal(size=(62, 8))[identities]
    queries = np.flatnonzero(identities > 0)[:80]
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cmc, average_precisions, penalties = np.zeros(20), [], []
    for q in queries:
        order = np.argsort(-(unit @ unit[q]), kind="stable")
        excluded = (identities[order] == identities[q]) & (cameras[order] == cameras[q])
        order = order[~(excluded | (identities[order] == -1))]
        matches = identities[order] == identities[q]
        if not matches.any():
            continue
        places = np.flatnonzero(matches)
        cmc[places[0] :] += 1
        average_precisions.append(np.mean(np.arange(1, len(places) + 1) / (places + 1)))
        penalties.append(len(places) / (places[-1] + 1))
    ks = [f"recall@{k}" for k in range(1, 21)]
    sides = x[queries], Labels(identities[queries], cameras[queries]), x, Labels(identities, cameras, junk=-1)
    found = evaluate(*sides, metrics=[*ks, "map", "minp"])
    assert found.n_queries - found.n_unmatched == len(average_precisions) > 0
    np.testing.assert_allclose([found[k] for k in ks], cmc / len(average_precisions), rtol=0, atol=1e-12)
    assert found["map"] == pytest.approx(np.mean(average_precisions), abs=1e-12)
    assert found["minp"] == pytest.approx(np.mean(penalties), abs=1e-12)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("kind", ["groups", "lists", "separate lists", "junk"])
@pytest.mark.parametrize("classes", [3, 60])
def test_ranks_measure_relations_to_the_bits_of_one(
    ties: Any, world_size: int, kind: str, classes: int
) -> None:
    rng = np.random.default_rng(0)
    x, labels = rng.integers(1, 4, (150, 3)).astype(np.float32), rng.integers(0, classes, 150)
    offsets, indices = listed([np.flatnonzero(labels == label) for label in labels])
    graded = Relevance(offsets, indices, 1 + np.arange(len(indices)) % 3)
    options: Any = {"metrics": METRICS, "ties": ties, "threads": 1}
    given: Any = {
        "groups": (x, Labels(labels, rng.integers(0, 3, 150))),
        "lists": (x, graded),
        "separate lists": (x, graded, x),
        "junk": (x, Labels(labels, junk=1)),
    }[kind]
    if kind == "separate lists":
        options["exclude"] = np.arange(150)

    def work(peer: ThreadPeer | None) -> Evaluation:
        return evaluate(*given, peers=peer, **options)

    alone = work(None)
    for result in run_together(world_size, work):
        assert_same_bits(result, alone)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@given(data=st.data())
def test_neighbours_exclude_each_querys_own_item(similarity: Any, data: Any) -> None:
    x, gallery = data.draw(sides(similarity))
    gallery = x if gallery is None else gallery
    own = np.array(data.draw(st.lists(st.integers(-1, len(gallery) - 1), min_size=len(x), max_size=len(x))))
    k = data.draw(st.integers(1, len(gallery) - bool((own >= 0).any())))
    _, found = knn(x, gallery, k, similarity=similarity, exclude=own)
    _, order = reference.nearest(x, gallery, len(gallery), similarity, False)
    assert found.tolist() == [[i for i in row if i != q][:k] for row, q in zip(order, own.tolist())]


@given(
    sets=st.lists(st.sets(st.integers(0, 4)), min_size=1, max_size=8),
    gallery=st.none() | st.lists(st.sets(st.integers(0, 4)), min_size=1, max_size=8),
)
def test_relevance_is_that_of_every_pair_of_label_sets(
    sets: list[set[int]], gallery: list[set[int]] | None
) -> None:
    others = sets if gallery is None else gallery
    expected = [{i: len(a & b) for i, b in enumerate(others) if a & b} for a in sets]

    def hot(x: list[set[int]] | None) -> np.ndarray | None:
        return None if x is None else np.array([[label in labels for label in range(5)] for labels in x])

    named = [[f"label {label}" for label in labels] for labels in sets]
    named_gallery = (
        None if gallery is None else [[f"label {label}" for label in labels] for labels in gallery]
    )
    for pair in ((sets, gallery), (hot(sets), hot(gallery)), (named, named_gallery)):
        found = relevance_from_labels(*pair, graded=True)  # type: ignore[arg-type]
        items, grades = found.indices.tolist(), found.grades.tolist()  # type: ignore[union-attr]
        of_queries = itertools.pairwise(found.offsets.tolist())
        assert [dict(zip(items[a:b], grades[a:b])) for a, b in of_queries] == expected
        plain = relevance_from_labels(*pair)  # type: ignore[arg-type]
        assert plain.grades is None
        assert [plain.offsets.tolist(), plain.indices.tolist()] == [found.offsets.tolist(), items]

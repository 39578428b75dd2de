"""Matches and excluded items (groups, lists, queries themselves, junk), compared with the slow
reference.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from eval_support import retrieval_reference as reference
from eval_support.assertions import assert_same_bits
from eval_support.matches import call, listed
from eval_support.peers import ThreadPeer, run_together
from eval_support.small_rows import exclusions, integers
from eval_support.trial import trial
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import (
    Evaluation,
    Labels,
    Relevance,
    evaluate,
    evaluate_ties,
    knn,
    relevance_from_labels,
)

TIES = ("index", "optimistic", "pessimistic", "expected")
SIMILARITIES = ("cosine", "dot", "euclidean", "hamming")
METRICS = [
    "recall@1", "recall@3", "precision@1", "r_precision", "map@r", "mrr", "precision@2", "map@2",
    "ndcg@3",
    "ir_recall@2", "mrr@3", "map", "minp",
]  # fmt: skip
# Allow for rounding: a mean over orders of ties adds a few products, and other metrics add up to R
# quotients.
TOLERANCE = 1e-12


@st.composite
def sides(draw: st.DrawFn, similarity: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Draw queries, and perhaps a gallery, that often tie: small integers, and sometimes a single
    row, repeated.
    """
    codes = similarity == "hamming"
    dtype = np.uint8 if codes else draw(st.sampled_from([np.float16, np.float32, np.float64]))
    row = st.lists(
        st.integers(0 if codes else -2, 3 if codes else 2), min_size=2, max_size=2
    ).filter(any)
    distinct = draw(st.sampled_from([1, 8, 8, 8]))

    def rows() -> np.ndarray:
        x = np.array(draw(st.lists(row, min_size=2, max_size=8)), dtype)
        return x[np.arange(len(x)) % distinct]

    return rows(), draw(st.none() | st.builds(rows))


def assert_measured_as_the_reference_does(data: Any, *given: Any, **options: Any) -> None:
    """Compare `evaluate`, and multiple rules for ties in a single call, with the reference.

    If there are no matches, both must raise an error.
    """
    options["metrics"] = data.draw(st.sampled_from([METRICS[:-2], METRICS]))
    rules = data.draw(st.lists(st.sampled_from(TIES), min_size=1, max_size=4, unique=True))
    expected = {rule: reference.evaluate(*given, ties=rule, **options) for rule in rules}
    if np.isnan(expected[rules[0]]["mrr"]).all():
        for function, ties in ((evaluate, rules[0]), (evaluate_ties, rules)):
            with pytest.raises(ValueError, match="has a match"):
                call(function, *given, ties=ties, **options)
        return
    with trial(many_positives=data.draw(st.sampled_from([None, 1, 2, 4]))):
        found = call(evaluate_ties, *given, ties=iter(rules), **options)
    assert list(found) == rules
    for rule, measured in found.items():
        assert_same_bits(measured, call(evaluate, *given, ties=rule, **options))
        assert list(measured.per_query) == list(expected[rule])
        for name, values in expected[rule].items():
            np.testing.assert_allclose(
                measured.per_query[name], values, rtol=0, atol=TOLERANCE, err_msg=name
            )
            np.testing.assert_allclose(
                measured[name], np.nanmean(values), rtol=0, atol=TOLERANCE, err_msg=name
            )


@pytest.mark.parametrize("similarity", SIMILARITIES)
@given(data=st.data())
def test_labels_groups_junk_and_own_items_are_those_of_the_reference(
    similarity: str, data: Any
) -> None:
    x, gallery = data.draw(sides(similarity))
    has_gallery = gallery is not None
    n, items = len(x), len(x if gallery is None else gallery)
    labels, gallery_labels = (
        data.draw(integers(n, 2)),
        data.draw(integers(items, 2)) if has_gallery else None,
    )
    options = data.draw(exclusions(n, items, has_gallery)) | {"similarity": similarity}
    if data.draw(st.booleans()):
        options["groups"] = data.draw(integers(n, 2))
        options["gallery_groups"] = data.draw(integers(items, 2)) if has_gallery else None
    special = st.lists(st.integers(0, 3), max_size=1)
    junk, options["distractors"] = data.draw(special), data.draw(special)
    # Don't combine junk with lists of ignored items, and don't make every item junk.
    if "ignored" not in options and not {
        *(labels if gallery_labels is None else gallery_labels)
    } <= {*junk}:
        options["junk"] = junk
    assert_measured_as_the_reference_does(data, x, labels, gallery, gallery_labels, **options)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@given(data=st.data())
def test_listed_matches_and_grades_are_those_of_the_reference(similarity: str, data: Any) -> None:
    x, gallery = data.draw(sides(similarity))
    items = len(x if gallery is None else gallery)
    options = data.draw(exclusions(len(x), items, gallery is not None)) | {"similarity": similarity}
    grade = st.sampled_from([0, 1, 2, 3, 0.5]) if data.draw(st.booleans()) else st.just(1)
    matches = st.dictionaries(st.integers(0, items - 1), grade, max_size=5)
    options["relevant"] = data.draw(st.lists(matches, min_size=len(x), max_size=len(x)))
    assert_measured_as_the_reference_does(data, x, None, gallery, None, **options)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("separate", [False, True])
def test_listing_the_items_of_each_label_gives_the_bits_of_labels(
    similarity: str, ties: Any, separate: bool
) -> None:
    """Use more than a single task and block of the screen, and large classes, which are counted
    from tables.
    """
    rng = np.random.default_rng(0)
    for classes in (4, 300):
        labels = rng.integers(0, classes, 900)
        x = rng.integers(1, 4, (900, 3)).astype(np.uint8 if similarity == "hamming" else np.float32)
        sets = [{label} for label in labels.tolist()]
        relevant = relevance_from_labels(
            sets[:200] if separate else sets, sets if separate else None
        )
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
    """Compare with a loop like the protocol: drop junk and items with the query's identity and
    camera.
    """
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
    sides = (
        x[queries],
        Labels(identities[queries], cameras[queries]),
        x,
        Labels(identities, cameras, junk=-1),
    )
    found = evaluate(*sides, metrics=[*ks, "map", "minp"])
    assert found.n_queries - found.n_unmatched == len(average_precisions) > 0
    np.testing.assert_allclose(
        [found[k] for k in ks], cmc / len(average_precisions), rtol=0, atol=1e-12
    )
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
    own = data.draw(integers(len(x), len(gallery) - 1, -1))
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
        return (
            None
            if x is None
            else np.array([[label in labels for label in range(5)] for labels in x])
        )

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

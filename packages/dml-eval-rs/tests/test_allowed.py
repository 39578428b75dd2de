"""Searches that only find allowed items, compared with slow references: many ties, and all forms of
`allowed`.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from eval_support import mining_reference
from eval_support.path_data import NEVER, screens
from eval_support.retrieval_reference import keys_of
from eval_support.scores_reference import score
from eval_support.small_rows import integers, small_rows
from eval_support.trial import trial
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import (
    Labels,
    Relevance,
    hard_negatives,
    index_recall,
    knn,
    knn_shards,
    range_search,
)
from dml_eval_rs.matches import allowed as allowed_items

SIMILARITIES = st.sampled_from(["cosine", "dot", "euclidean", "hamming"])
X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)


def draw_allowed(data: Any, queries: int, items: int) -> tuple[Any, list[set[int]]]:
    """Draw the argument `allowed` in one of its forms; also return each query's allowed items as a
    set.
    """
    form = data.draw(st.sampled_from(["mask", "labels", "lists", "relevance"]))
    if form == "mask":
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=items, max_size=items)))
        return mask, [set(np.flatnonzero(mask).tolist())] * queries
    if form == "labels":
        sides = data.draw(integers(queries, 3)), data.draw(integers(items, 2))
        return (Labels(sides[0]), Labels(sides[1])), [
            set(np.flatnonzero(sides[1] == of).tolist()) for of in sides[0]
        ]
    sets = data.draw(
        st.lists(st.sets(st.integers(0, items - 1)), min_size=queries, max_size=queries)
    )
    lists = np.cumsum([0, *map(len, sets)]), np.array([i for of in sets for i in of], np.int64)
    return (lists if form == "lists" else Relevance(*lists)), sets


@given(data=st.data(), similarity=SIMILARITIES)
def test_only_allowed_items_are_found(data: Any, similarity: Any) -> None:
    dim = data.draw(st.sampled_from([1, 2, 9]))
    queries = data.draw(small_rows(dim, similarity=similarity))
    gallery = (
        None if data.draw(st.booleans()) else data.draw(small_rows(dim, similarity=similarity))
    )
    items = queries if gallery is None else gallery
    n = len(items)
    allowed, sets = draw_allowed(data, len(queries), n)
    own = np.full(len(queries), -1)
    shared: dict[str, Any] = {"similarity": similarity, "allowed": allowed}
    if len(queries) == n and data.draw(st.booleans()):
        shared["exclude_self"], own = True, np.arange(n)
    k = data.draw(st.integers(1, n - bool(shared.get("exclude_self"))))
    kernel, screen = data.draw(st.sampled_from(screens()))
    sizes = {
        "items_per_allowed": data.draw(st.sampled_from([0, NEVER])),
        "candidate_bytes": 1,
        "range_queries": 3,
    }
    copied = data.draw(st.sampled_from([0.0, 1.0]))

    all_keys = [keys_of(query, items, similarity) for query in queries]
    usable = [[i for i in range(n) if i in sets[q] and i != own[q]] for q in range(len(queries))]
    nearest = [sorted(of, key=lambda i: (-keys[i], i))[:k] for of, keys in zip(usable, all_keys)]
    all_scores = [
        keys if similarity == "hamming" else [score(query, item, similarity) for item in items]
        for query, keys in zip(queries, all_keys)
    ]
    threshold = float(data.draw(st.sampled_from([s for of in all_scores for s in of])))
    in_range = [
        sorted((i for i in of if scores[i] >= threshold), key=lambda i: (-scores[i], i))
        for of, scores in zip(usable, all_scores)
    ]
    width = k + data.draw(st.integers(0, 2))
    ids = [*range(n), *[-1] * width]
    found = [data.draw(st.permutations(ids).map(lambda row: row[:width])) for _ in queries]
    recalls = []
    for q, (of, keys) in enumerate(zip(nearest, all_keys)):
        first = [i for i in found[q] if i != own[q] or own[q] < 0][:k]
        right = sum(i in sets[q] and keys[i] >= keys[of[-1]] for i in first) if of else 0
        recalls.append(float(Fraction(right, len(of))) if of else None)

    with pytest.MonkeyPatch.context() as patch, trial(kernel=kernel, screen=screen, **sizes):
        patch.setattr(allowed_items, "_COPIED", copied)
        patch.setattr(allowed_items, "_QUERIES_PER_LIST", data.draw(st.sampled_from([0, 2, NEVER])))
        scores, indices = knn(queries, gallery, k, **shared)
        offsets, ranged, _ = range_search(
            queries, gallery, -threshold if similarity == "hamming" else threshold, **shared
        )
        measured = index_recall(found, queries, gallery, k, **shared).per_query
        if isinstance(allowed, np.ndarray):
            parts = None if gallery is None else [gallery.astype(queries.dtype)]
            same = knn_shards([queries], parts, k, block=3, **shared)
            assert np.array_equal(same[1], indices)
            assert np.array_equal(same[0], scores)
    assert indices.tolist() == [[*of, *[-1] * (k - len(of))] for of in nearest]
    worst = 2**31 - 1 if similarity == "hamming" else -np.inf
    assert (scores[indices < 0] == worst).all()
    everything = {} if gallery is None else {"exclude": None}
    full, order = knn(queries, gallery, n, similarity=similarity, **everything)
    for q in range(len(queries)):
        by_item = dict(zip(order[q].tolist(), full[q].tolist()))
        assert scores[q, : len(nearest[q])].tolist() == [by_item[i] for i in nearest[q]]
    assert [ranged[a:b].tolist() for a, b in itertools.pairwise(offsets)] == in_range
    assert [None if np.isnan(value) else value for value in measured] == recalls


@given(data=st.data(), similarity=SIMILARITIES)
def test_negatives_are_mined_in_a_gallery_from_lists_and_allowed_items(
    data: Any, similarity: Any
) -> None:
    queries = data.draw(small_rows(2, similarity=similarity))
    gallery = data.draw(st.one_of(st.none(), small_rows(2, similarity=similarity)))
    items = queries if gallery is None else gallery
    n = len(items)
    labels, gallery_labels = data.draw(integers(len(queries), 2)), data.draw(integers(n, 2))
    labels[:2] = 0, 1
    given: Any = {} if gallery is None else {"gallery": gallery, "gallery_labels": gallery_labels}
    positives: Any = labels
    slow: Any = dict(given)
    if data.draw(st.booleans()):
        sets = data.draw(
            st.lists(st.sets(st.integers(0, n - 1)), min_size=len(queries), max_size=len(queries))
        )
        positives = Relevance(
            np.cumsum([0, *map(len, sets)]), np.array([i for of in sets for i in of], np.int64)
        )
        given.pop("gallery_labels", None)
        slow["listed"] = sets
    if data.draw(st.booleans()):
        given["allowed"], slow["allowed"] = draw_allowed(data, len(queries), n)
    below: Any = data.draw(st.sampled_from([None, "hardest", "easiest"]))
    margin = data.draw(st.sampled_from([0.0, 0.25])) if below else 0.0
    if below and similarity in ("cosine", "dot") and data.draw(st.booleans()):
        given["relative_margin"] = slow["factor"] = 0.75
        margin = 0.0
    k = data.draw(st.integers(1, n - (gallery is None)))
    expected = mining_reference.hard_negatives(
        queries, labels, k, similarity, below, margin, **slow
    )
    sizes = {"items_per_allowed": data.draw(st.sampled_from([0, NEVER])), "guess_spacing": 1}
    with trial(**sizes):
        options: Any = {"below": below, "margin": margin, "similarity": similarity, **given}
        reported, found = hard_negatives(queries, positives, k, **options)
    assert [row[row >= 0].tolist() for row in found] == expected
    assert ((reported == -1) if similarity == "hamming" else np.isnan(reported)).tolist() == (
        found < 0
    ).tolist()


def test_a_row_that_is_not_a_number_is_named_by_the_callers_index() -> None:
    gallery = X.copy()
    gallery[7, 2] = np.nan
    allowed = np.arange(40) % 7 == 0
    with pytest.raises(ValueError, match="gallery row 7 holds NaN"):
        knn(X, gallery, 2, allowed=allowed)
    allowed[7] = False
    assert set(knn(X, gallery, 5, allowed=allowed)[1].ravel()) <= {0, 14, 21, 28, 35}


@pytest.mark.parametrize(
    ("allowed", "error", "message"),
    [
        (
            np.ones(39, bool),
            ValueError,
            r"allowed has shape \(39,\); expected \(40,\), one boolean per gallery item",
        ),
        (
            np.ones(40),
            TypeError,
            "allowed has dtype float64; expected booleans, two Labels, or the tuple",
        ),
        (
            (Labels(np.arange(40)), [1]),
            TypeError,
            "allowed has Labels and a list; expected Labels for both sides",
        ),
        ((Labels(np.arange(40)),), TypeError, "allowed is a tuple of 1; expected two Labels, or"),
        (
            (Labels(np.arange(40)), Labels([1, 2])),
            ValueError,
            "allowed has 2 labels for the gallery; expected 40",
        ),
        (
            (Labels(np.arange(40), np.arange(40)), Labels(np.arange(40))),
            ValueError,
            "Labels with groups",
        ),
        (([0, 1], [1]), ValueError, "allowed has 2 offsets; expected 41"),
        ((np.arange(41), np.arange(40) + 1), ValueError, "allowed lists item 40 for query 39"),
    ],
)
def test_other_forms_are_refused(allowed: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        knn(X, None, 3, allowed=allowed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gallery": X}, "gallery is given without gallery_labels"),
        ({"gallery_labels": np.arange(40)}, "gallery_labels is given without gallery"),
        ({"relative_margin": 0.9}, "relative_margin is 0.9 and below is None"),
        ({"relative_margin": 1.5, "below": "easiest"}, "relative_margin is 1.5"),
        ({"relative_margin": 0.5, "below": "easiest", "margin": 0.5}, "and no margin"),
        (
            {"relative_margin": 0.5, "below": "easiest", "similarity": "euclidean"},
            "given for 'euclidean'",
        ),
    ],
)
def test_options_of_mining_that_do_not_fit_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hard_negatives(X, np.arange(40) % 3, 2, **options)

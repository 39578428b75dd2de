"""Levels of labels must give the bits of separate calls, and the slow reference's values."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from eval_support import retrieval_reference as reference
from eval_support.assertions import assert_same_bits
from eval_support.matches import call
from eval_support.peers import run_together
from eval_support.small_rows import exclusions, integers, small_rows
from eval_support.trial import trial
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import Labels, Relevance, evaluate, evaluate_levels

TIES = ("index", "optimistic", "pessimistic", "expected")
SIMILARITIES = ("cosine", "dot", "euclidean", "hamming")
METRICS = [
    "recall@1",
    "recall@3",
    "r_precision",
    "map@r",
    "mrr",
    "precision@2",
    "ndcg@3",
    "map",
    "minp",
]


@pytest.mark.parametrize("similarity", SIMILARITIES)
@given(ties=st.sampled_from(TIES), data=st.data())
def test_each_level_is_that_of_the_reference(similarity: Any, ties: Any, data: Any) -> None:
    x = data.draw(small_rows(2, similarity=similarity))
    gallery = data.draw(st.none() | small_rows(2, similarity=similarity))
    n, items = len(x), len(x if gallery is None else gallery)
    # Test nested levels, and a level that isn't nested.
    labels, gallery_labels = (
        {
            "class": side,
            "superclass": side // 2,
            "other": data.draw(integers(len(side), 1)),
            "all": 0 * side,
        }
        for side in (data.draw(integers(n, 5)), data.draw(integers(items, 5)))
    )
    options = data.draw(exclusions(n, items, gallery is not None))
    options |= {"metrics": METRICS, "similarity": similarity, "ties": ties, "unmatched": "zero"}
    if data.draw(st.booleans()):
        options["groups"] = data.draw(integers(n, 1))
        options["gallery_groups"] = None if gallery is None else data.draw(integers(items, 1))
    options["distractors"] = data.draw(st.sampled_from([(), (3,)]))
    with trial(many_positives=data.draw(st.sampled_from([None, 1, 2, 4]))):
        found = call(
            evaluate_levels,
            x,
            labels,
            gallery,
            None if gallery is None else gallery_labels,
            **options,
        )
    assert list(found) == list(labels)
    for name, level in found.items():
        given = (x, labels[name], gallery, None if gallery is None else gallery_labels[name])
        assert_same_bits(level, call(evaluate, *given, **options))
        for metric, values in reference.evaluate(*given, **options).items():
            # Allow for rounding: a mean over orders of ties adds products, and other metrics add up
            # to R quotients.
            np.testing.assert_allclose(
                level.per_query[metric], values, rtol=0, atol=1e-12, err_msg=metric
            )


@pytest.fixture(scope="module")
def clusters() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Draw classes of 4 within superclasses of 40, with some ties; large enough for more than a
    single tile.
    """
    rng = np.random.default_rng(0)
    labels = np.arange(1200) // 4
    centres = rng.normal(size=(300, 24)) + 2 * rng.normal(size=(30, 24))[np.arange(300) // 10]
    x = (centres[labels] + rng.normal(size=(1200, 24))).astype(np.float32)
    x[::7] = x[1]
    return x, {"class": labels, "superclass": labels // 10, "half": labels % 2}


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_many_tiles_and_large_classes_have_the_bits_of_each_call(
    similarity: Any, ties: Any, clusters: tuple[np.ndarray, dict[str, np.ndarray]]
) -> None:
    x, labels = clusters
    rows = np.packbits(x > 0, axis=1) if similarity == "hamming" else x
    first = {name: own[:500] for name, own in labels.items()}
    for arguments in ((rows, labels), (rows[:500], first, rows, labels)):
        for names in (["class", "superclass"], list(labels)):
            chosen = [
                {name: own[name] for name in names} if isinstance(own, dict) else own
                for own in arguments
            ]
            metrics = ["map@r", "precision@10", "mrr"]
            options: Any = {"similarity": similarity, "ties": ties, "metrics": metrics}
            found = evaluate_levels(*chosen, **options)  # type: ignore[arg-type]
            for name, level in found.items():
                own_call = [own[name] if isinstance(own, dict) else own for own in arguments]
                assert_same_bits(level, evaluate(*own_call, **options))  # type: ignore[arg-type]


def test_threads_and_peers_change_no_bit(
    clusters: tuple[np.ndarray, dict[str, np.ndarray]],
) -> None:
    x, labels = clusters
    expected = evaluate_levels(x, labels, threads=1)
    for found in [
        evaluate_levels(x, labels, threads=3),
        *run_together(2, lambda peer: evaluate_levels(x, labels, peers=peer, threads=1)),
    ]:
        for name, level in expected.items():
            assert_same_bits(level, found[name])


def test_columns_of_an_array_are_levels() -> None:
    rng = np.random.default_rng(0)
    x, table = rng.normal(size=(40, 4)), rng.integers(0, 3, (40, 2))
    found = evaluate_levels(x, dict(enumerate(table.T)))
    assert list(found) == [0, 1]
    assert found[1] == evaluate(x, table[:, 1])


def test_progress_covers_all_pairs(clusters: tuple[np.ndarray, dict[str, np.ndarray]]) -> None:
    x, labels = clusters
    reported: list[tuple[int, int]] = []
    evaluate_levels(x, labels, progress=lambda done, total: reported.append((done, total)))
    assert reported[-1][0] == reported[-1][1] > 0
    assert all(a <= b for (a, _), (b, _) in itertools.pairwise(reported))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([0, 0, 1, 1],), {}, TypeError,
         "labels is a list; expected a mapping from level to labels"),
        (({},), {}, ValueError, "labels is empty; expected at least one level"),
        (({"a": [0, 0, 1]},), {}, ValueError, r"level 'a': labels has shape \(3,\)"),
        (({"a": [0.5] * 4},), {}, TypeError, "level 'a': labels has dtype float64"),
        (({"a": [0, 0, 1, 1], "b": [0, 1, 2, 3]},), {}, ValueError,
         "level 'b': none of the 4 queries has a match"),
        (({"a": [0] * 4}, np.eye(4)), {}, ValueError, "gallery is given without gallery_labels"),
        (({"a": [0] * 4}, np.eye(4), {"b": [0] * 4}), {}, ValueError,
         r"has levels \['b'\]; expected \['a'\]"),
        (({"a": [0] * 4}, np.eye(4), [0] * 4), {}, TypeError,
         "gallery_labels is a list; expected a mapping"),
        (({"a": [0] * 4},), {"similarity": "hamming"}, TypeError,
         "embeddings has dtype float64; similarity='hamming' expects uint8"),
        (({"a": [0] * 4},), {"ties": "none"}, ValueError, "ties is 'none'"),
        (({"a": [0] * 4},), {"metrics": ["mrr", "nmi"]}, ValueError,
         "contains 'nmi'; expected retrieval metrics"),
        (({"a": Labels([0, 0, 0, 1], junk=1)},), {}, ValueError,
         "level 'a' has junk; expected none"),
        (({"a": Labels([0] * 4, [1] * 4), "b": [0] * 4},), {}, ValueError,
         "level 'a': none of the 4 queries has"),
        (({"a": Relevance([0] * 5, [])}, None, {"a": [0]}), {}, ValueError,
         "level 'a': gallery_labels and a Rel"),
        (({"a": [0] * 4},), {"exclude": [0] * 4}, ValueError,
         "level 'a': exclude is given without a gallery"),
    ],
)  # fmt: skip
def test_wrong_levels_are_refused(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        evaluate_levels(np.eye(4), *arguments, **options)

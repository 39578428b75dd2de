"""Rules for ties that share a count must give the bits of separate calls, and the slow reference's
values.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from eval_support.assertions import assert_same_bits
from eval_support.peers import ThreadPeer, run_together

from dml_eval_rs import Evaluation, Labels, evaluate, evaluate_ties

TIES = ("index", "optimistic", "pessimistic", "expected")
SIMILARITIES = ("cosine", "dot", "euclidean", "hamming")
METRICS = [
    "recall@1",
    "recall@3",
    "precision@1",
    "r_precision",
    "map@r",
    "mrr",
    "precision@2",
    "ndcg@3",
]


@pytest.fixture(scope="module")
def tied() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Make rows that fill multiple tiles: with few ties, integers with many ties, equal rows, and a
    large class.
    """
    rng = np.random.default_rng(0)
    labels = np.arange(1200) // 4
    x = (rng.normal(size=(300, 24))[labels] + rng.normal(size=(1200, 24))).astype(np.float32)
    x[::7] = x[1]
    large = np.where(labels < 100, 0, labels)
    integers = rng.integers(-1, 2, (1200, 4)).astype(np.float32)
    integers[:, 0] = 2
    equal = np.ones((1200, 4), np.float32)
    return {
        "few": (x, labels),
        "integers": (integers, labels),
        "equal": (equal, labels),
        "large": (integers, large),
    }


@pytest.mark.parametrize("case", ["few", "integers", "equal", "large"])
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_many_tiles_have_the_bits_of_each_call(
    similarity: Any, case: str, tied: dict[str, tuple[np.ndarray, np.ndarray]]
) -> None:
    x, labels = tied[case]
    rows = np.packbits(x > 0, axis=1) if similarity == "hamming" else x
    for arguments in ((rows, labels), (rows[:500], labels[:500], rows, labels)):
        options: Any = {
            "similarity": similarity,
            "metrics": ["map@r", "mrr", "precision@10", "recall@1"],
        }
        found = evaluate_ties(*arguments, **options)  # type: ignore[arg-type]
        assert list(found) == list(TIES)
        for rule, measured in found.items():
            assert_same_bits(measured, evaluate(*arguments, ties=rule, **options))  # type: ignore[arg-type]


def test_junk_and_distractors_have_the_bits_of_each_call(
    tied: dict[str, tuple[np.ndarray, np.ndarray]],
) -> None:
    x, labels = tied["integers"]
    special: Any = {"junk": [3, 7, 250], "distractors": 5}
    for similarity, separate in itertools.product(("dot", "hamming"), (False, True)):
        rows = np.packbits(x > 0, axis=1) if similarity == "hamming" else x
        given: Any = (rows, Labels(labels, **special))
        if separate:
            given = (rows[:99], labels[:99], rows, Labels(labels, **special))
        for rule, measured in evaluate_ties(*given, similarity=similarity).items():  # type: ignore[arg-type]
            assert_same_bits(measured, evaluate(*given, ties=rule, similarity=similarity))  # type: ignore[arg-type]


def test_threads_and_peers_change_no_bit(tied: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    for (x, labels), separate in itertools.product(
        (tied["integers"], tied["large"]), (False, True)
    ):
        gallery = (x[:700], labels[:700]) if separate else ()

        def measure(
            peer: ThreadPeer | None, threads: int = 1, given: Any = (x, labels, *gallery)
        ) -> dict[Any, Evaluation]:
            return evaluate_ties(*given, peers=peer, threads=threads)

        expected = measure(None)
        for found in [measure(None, 3), *run_together(3, measure)]:
            assert list(found) == list(TIES)
            for rule, measured in expected.items():
                assert_same_bits(measured, found[rule])


def test_peers_with_other_rules_are_refused() -> None:
    x, labels = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 5

    def measure(peer: ThreadPeer) -> None:
        with pytest.raises(ValueError, match="different arrays or options"):
            evaluate_ties(x, labels, ties=TIES[peer.rank :], peers=peer)  # type: ignore[arg-type]

    run_together(2, measure)


def test_every_pair_is_compared_once_for_all_rules(
    tied: dict[str, tuple[np.ndarray, np.ndarray]],
) -> None:
    reported: list[tuple[int, int]] = []
    evaluate_ties(*tied["integers"], progress=lambda done, total: reported.append((done, total)))
    assert reported[-1] == (1200 * 1199 // 2, 1200 * 1199 // 2)
    assert reported == sorted(reported)


def test_optimistic_and_pessimistic_bound_every_metric(
    tied: dict[str, tuple[np.ndarray, np.ndarray]],
) -> None:
    found = evaluate_ties(*tied["integers"], metrics=[*METRICS, "ndcg@5", "map", "minp", "map@7"])
    for rule, (name, most) in itertools.product(TIES, found["optimistic"].per_query.items()):
        values, least = found[rule].per_query[name], found["pessimistic"].per_query[name]  # type: ignore[index]
        # Allow for the rounding of means over the orders of tied items.
        assert ((least - 1e-12 <= values) & (values <= most + 1e-12)).all(), (rule, name)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([0, 0, 1, 1],), {"ties": "index"}, TypeError,
         "ties is 'index'; expected a sequence of rules"),
        (([0, 0, 1, 1],), {"ties": None}, TypeError, "ties is None; expected a sequence of rules"),
        (([0, 0, 1, 1],), {"ties": ()}, ValueError, "ties is empty; expected at least one"),
        (([0, 0, 1, 1],), {"ties": ["index", "none"]}, ValueError,
         "ties is 'none'; expected one of 'index'"),
        (([0, 0, 1, 1],), {"ties": [1]}, TypeError, "ties is a int; expected one of 'index'"),
        (([0, 0, 1, 1],), {"ties": ["index"] * 2}, ValueError, "expected distinct rules"),
        (([0, 0, 1],), {}, ValueError, r"labels has shape \(3,\)"),
        ((None,), {}, TypeError, "labels is None"),
        (([0, 1, 2, 3],), {}, ValueError, "none of the 4 queries has a match"),
        (([0] * 4, np.eye(4)), {}, ValueError, "gallery is given without gallery_labels"),
        (([0] * 4, np.eye(3), [0] * 3), {}, ValueError, r"expected \(3, 4\) to match embeddings"),
        (([0] * 4,), {"similarity": "hamming"}, TypeError,
         "dtype float64; similarity='hamming' expects uint8"),
        (([0] * 4,), {"similarity": "angle"}, ValueError, "similarity is 'angle'"),
        (([0] * 4,), {"unmatched": "one"}, ValueError, "unmatched is 'one'"),
        (([0] * 4,), {"metrics": "ari"}, ValueError,
         "metrics contains 'ari'; expected retrieval metrics"),
    ],
)  # fmt: skip
def test_wrong_rules_and_arrays_are_refused(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        evaluate_ties(np.eye(4), *arguments, **options)

"""Processes that share a measurement all get the bits of a single one, and compare no pair twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from eval_support.assertions import assert_same_bits
from eval_support.peers import ThreadPeer, run_together
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import Evaluation, evaluate, evaluate_codes

TIES = ("index", "optimistic", "pessimistic", "expected")


@given(
    n=st.integers(2, 150),
    # With one or two classes, some queries have the 32 matches from which all of their keys are computed.
    classes=st.sampled_from([1, 2, 7, 60]),
    queries=st.none() | st.integers(1, 40),
    similarity=st.sampled_from(["cosine", "dot", "euclidean"]),
    ties=st.sampled_from(TIES),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    nmi=st.booleans(),
    world_size=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_ranks_measure_embeddings_to_the_bits_of_one(
    n: int,
    classes: int,
    queries: int | None,
    similarity: Any,
    ties: Any,
    dtype: Any,
    nmi: bool,
    world_size: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.integers(-2, 3, (n, 4)) + 0.5).astype(dtype)  # few values, so that ties are many
    labels = rng.integers(0, classes, n)
    labels[-1] = labels[0]
    split = slice(0, queries)
    gallery = () if queries is None else (x, labels)

    def measure(peer: ThreadPeer | None) -> Evaluation:
        return evaluate(
            x[split],
            labels[split],
            *gallery,
            similarity=similarity,
            ties=ties,
            recall_at=(1, 5),
            nmi=nmi,
            seed=seed,
            threads=1,
            peers=peer,
        )

    alone = measure(None)
    for result in run_together(world_size, measure):
        assert_same_bits(result, alone)


@given(
    n=st.integers(2, 150),
    classes=st.sampled_from([1, 2, 7, 60]),
    separate=st.booleans(),
    ties=st.sampled_from(TIES),
    world_size=st.integers(2, 5),
    seed=st.integers(0, 99),
)
def test_ranks_measure_codes_to_the_bits_of_one(
    n: int, classes: int, separate: bool, ties: Any, world_size: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    codes, labels = rng.integers(0, 4, (n, 3), dtype=np.uint8), rng.integers(0, classes, n)
    labels[-1] = labels[0]
    gallery = (codes[: n // 2 + 1], labels[: n // 2 + 1]) if separate else ()

    def measure(peer: ThreadPeer | None) -> Evaluation:
        return evaluate_codes(codes, labels, *gallery, ties=ties, threads=1, peers=peer)

    alone = measure(None)
    for result in run_together(world_size, measure):
        assert_same_bits(result, alone)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("classes", [2, 100], ids=["large classes", "small classes"])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_each_rank_does_its_part_and_no_pair_twice(world_size: int, classes: int, separate: bool) -> None:
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(1200, 8)).astype(np.float32), np.arange(1200) % classes
    gallery = (x, labels) if separate else ()

    def pairs(peer: ThreadPeer | None) -> int:
        seen: list[tuple[int, int]] = [(0, 0)]
        evaluate(x, labels, *gallery, threads=1, peers=peer, progress=lambda *now: seen.append(now))
        assert seen[-1][0] == seen[-1][1]
        return seen[-1][0]

    parts = run_together(world_size, pairs)
    assert sum(parts) == pairs(None)
    assert max(parts) <= 1.05 * sum(parts) / world_size


def test_the_clustering_is_shared_too() -> None:
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(600, 8)).astype(np.float32), np.arange(600) % 100

    def pairs(peer: ThreadPeer | None) -> int:
        seen: list[tuple[int, int]] = [(0, 0)]
        evaluate(x, labels, nmi=True, threads=1, peers=peer, progress=lambda *now: seen.append(now))
        return seen[-1][0]

    assert sum(run_together(2, pairs)) == pairs(None)


def test_a_rank_that_passes_only_its_own_part_is_named_on_every_rank() -> None:
    x, labels = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 5

    def measure(peer: ThreadPeer) -> str:
        part = slice(20 * peer.rank, 20 * (peer.rank + 1))
        with pytest.raises(
            ValueError, match="rank 1 of 2 came with other arrays or options than rank 0"
        ) as error:
            evaluate(x[part], labels[part], peers=peer)
        return str(error.value)

    assert len(set(run_together(2, measure))) == 1


def test_ranks_with_different_options_are_refused() -> None:
    codes, labels = np.zeros((6, 1), np.uint8), np.zeros(6, int)

    def measure(peer: ThreadPeer) -> None:
        with pytest.raises(ValueError, match="other arrays or options"):
            evaluate_codes(codes, labels, ties=TIES[peer.rank], peers=peer)

    run_together(3, measure)


def test_an_error_of_an_exchange_reaches_the_caller() -> None:
    class Lost(ThreadPeer):
        def all_reduce(self, counts: Any) -> Any:
            raise ConnectionError("rank 1 is gone")

    x, labels = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 5

    def measure(peer: ThreadPeer) -> None:
        with pytest.raises(ConnectionError, match="rank 1 is gone"):
            evaluate(x, labels, peers=Lost(peer.rank, peer.exchange))

    run_together(2, measure)


def test_peers_that_gather_nothing_are_refused() -> None:
    class Alone(ThreadPeer):
        def all_gather(self, numbers: Any) -> Any:
            return numbers

    def measure(peer: ThreadPeer) -> None:
        with pytest.raises(ValueError, match="returned 1 numbers for one of each of 2 ranks"):
            evaluate(np.eye(4), np.zeros(4, int), peers=Alone(peer.rank, peer.exchange))

    run_together(2, measure)

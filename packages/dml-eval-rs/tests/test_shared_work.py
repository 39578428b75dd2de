"""Processes that share a measurement must get a single process's bits, and must not compare a pair
twice.
"""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from eval_support.assertions import assert_same_bits
from eval_support.peers import ThreadPeer, run_together
from eval_support.trial import trial
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import Evaluation, evaluate, verify

TIES = ("index", "optimistic", "pessimistic", "expected")


@given(
    n=st.integers(2, 150),
    # If there are 1 or 2 classes, some queries have 32 or more matches, so all keys are computed.
    classes=st.sampled_from([1, 2, 7, 60]),
    queries=st.none() | st.integers(1, 40),
    similarity=st.sampled_from(["cosine", "dot", "euclidean", "hamming"]),
    ties=st.sampled_from(TIES),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    clusters=st.booleans(),
    world_size=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_ranks_measure_embeddings_and_codes_to_the_bits_of_one(
    n: int,
    classes: int,
    queries: int | None,
    similarity: Any,
    ties: Any,
    dtype: Any,
    clusters: bool,
    world_size: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.integers(-2, 3, (n, 4)) + 0.5).astype(dtype)  # few values, so that rows often tie
    if similarity == "hamming":
        x = rng.integers(0, 4, (n, 3), dtype=np.uint8)
    labels = rng.integers(0, classes, n)
    labels[-1] = labels[0]
    split = slice(0, queries)
    gallery = () if queries is None else (x, labels)

    metrics = ["recall@1", "recall@5", "map@r", *(["nmi", "ari"] if clusters else [])]
    options: Any = {
        "similarity": similarity,
        "ties": ties,
        "metrics": metrics,
        "seed": seed,
        "threads": 1,
    }

    def measure(peer: ThreadPeer | None) -> Evaluation:
        return evaluate(x[split], labels[split], *gallery, peers=peer, **options)

    alone = measure(None)
    for result in run_together(world_size, measure):
        assert_same_bits(result, alone)


@pytest.mark.parametrize(
    ("separate", "classes", "world_size", "options"),
    [(*case, {}) for case in itertools.product([False, True], [2, 100], [2, 3, 4])]
    + [(False, 100, 2, {"metrics": "nmi"})],
)
def test_each_rank_does_its_part_and_no_pair_twice(
    separate: bool, classes: int, world_size: int, options: Any
) -> None:
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(1200, 8)).astype(np.float32), np.arange(1200) % classes
    gallery = (x, labels) if separate else ()

    def pairs(peer: ThreadPeer | None) -> int:
        seen: list[tuple[int, int]] = [(0, 0)]
        evaluate(
            x,
            labels,
            *gallery,
            threads=1,
            peers=peer,
            progress=lambda *now: seen.append(now),
            **options,
        )
        assert seen[-1][0] == seen[-1][1]
        return seen[-1][0]

    parts = run_together(world_size, pairs)
    assert sum(parts) == pairs(None)
    assert max(parts) <= 1.05 * sum(parts) / world_size


def test_a_rank_that_passes_only_its_own_part_is_named_on_every_rank() -> None:
    x, labels = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 5

    def measure(peer: ThreadPeer) -> str:
        part = slice(20 * peer.rank, 20 * (peer.rank + 1))
        with pytest.raises(
            ValueError, match="rank 1 of 2 passed different arrays or options than rank 0"
        ) as error:
            evaluate(x[part], labels[part], peers=peer)
        return str(error.value)

    assert len(set(run_together(2, measure))) == 1


@pytest.mark.parametrize(
    "options",
    [
        [{"ties": ties} for ties in TIES],
        [{"metrics": metrics} for metrics in ("mrr", "map@r", "recall@1")],
        [{"unmatched": "skip"}, {"unmatched": "zero"}, {}],
        [{"metrics": "nmi", "seed": seed} for seed in range(3)],
    ],
    ids=["ties", "metrics", "unmatched", "seed"],
)
def test_ranks_with_different_options_are_refused(options: list[Any]) -> None:
    codes, labels = np.zeros((6, 1), np.uint8), np.zeros(6, int)

    def measure(peer: ThreadPeer) -> None:
        with pytest.raises(ValueError, match="different arrays or options"):
            evaluate(codes, labels, similarity="hamming", peers=peer, **options[peer.rank])

    run_together(3, measure)


class Faulty(ThreadPeer):
    """A peer whose exchanges return `change(method, right answer, this peer's part, peer)`."""

    def __init__(self, peer: ThreadPeer, change: Any) -> None:
        super().__init__(peer.rank, peer.exchange)
        self.change, self.exchanges = change, 0

    def all_gather(self, numbers: Any) -> Any:
        right = super().all_gather(numbers)
        self.exchanges += 1
        return self.change("all_gather", right, numbers, self)

    def all_reduce(self, counts: Any) -> Any:
        right = super().all_reduce(counts)
        self.exchanges += 1
        return self.change("all_reduce", right, counts, self)


def test_an_error_of_an_exchange_reaches_the_caller() -> None:
    def lose(method: str, right: Any, own: Any, peer: ThreadPeer) -> Any:
        if method == "all_reduce":
            raise ConnectionError("rank 1 is gone")
        return right

    x, labels = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 5

    def measure(peer: ThreadPeer) -> None:
        with pytest.raises(ConnectionError, match="rank 1 is gone"):
            evaluate(x, labels, peers=Faulty(peer, lose))

    run_together(2, measure)


# By name: the method that fails, a function of the right answer and this rank's part, and the
# error.
FAULTS: dict[str, tuple[str, Any, type[Exception], str]] = {
    "gathers a number too few": ("all_gather", lambda x, _: x[:-1], ValueError,
        "all_gather returned"),
    "gathers a number too many": ("all_gather", lambda x, _: np.append(x, 1.0), ValueError,
        "all_gather returned"),
    "gathers in reverse": ("all_gather", lambda x, _: x[::-1].copy(), ValueError,
        "all_gather (changed|returned)"),
    "gathers its own numbers alone": ("all_gather", lambda _, own: own, ValueError,
        "all_gather returned"),
    "gathers in single precision": (
        "all_gather", lambda x, _: x.astype(np.float32),
        TypeError, "all_gather returned .*float32.*expected a numpy array",
    ),
    "gathers through single precision": (
        "all_gather", lambda x, _: x.astype(np.float32).astype(np.float64),
        ValueError, "all_gather (changed|returned)",
    ),
    "gathers a list": ("all_gather", lambda x, _: x.tolist(), TypeError,
        "all_gather returned a list"),
    "gathers NaN": ("all_gather", lambda x, _: x * np.nan, ValueError, "all_gather returned"),
    "reduces nothing": ("all_reduce", lambda _, own: own, ValueError,
        "all_reduce returned 1 as the sum of a 1"),
    "reduces to a mean": ("all_reduce", lambda x, _: x // 2, ValueError,
        "all_reduce returned 1 as the sum"),
    "reduces twice": ("all_reduce", lambda x, _: 2 * x, ValueError,
        "all_reduce returned 4 as the sum"),
    "reduces to one number": ("all_reduce", lambda x, _: x[:1], ValueError,
        "all_reduce returned 1 counts"),
    "reduces to floats": (
        "all_reduce", lambda x, _: x.astype(np.float64),
        TypeError,
        "all_reduce returned .*float64; expected a numpy array of one dimension and dtype "
                   "int64",
    ),
    "reduces to a table": ("all_reduce", lambda x, _: x[None], TypeError,
        "all_reduce returned an array of 2 dim"),
    "loses a count": (
        "all_reduce", lambda x, _: np.where(np.arange(len(x)) == x[:-2].argmax(), 0, x), ValueError,
        "aren't sums",
    ),
    "reduces to negative counts": ("all_reduce", lambda x, _: -x, ValueError, "negative count"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
# The first exchange compares arguments, later exchanges divide the work; both must raise an error.
@pytest.mark.parametrize("first", [1, 2], ids=["from the first exchange", "later"])
def test_an_exchange_with_a_wrong_result_is_an_error_on_every_rank(fault: str, first: int) -> None:
    fails, change, error, message = FAULTS[fault]
    x, labels = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 6

    def spoil(method: str, right: Any, own: Any, peer: Any) -> Any:
        return change(right, own) if method == fails and peer.exchanges >= first else right

    def measure(peer: ThreadPeer) -> None:
        with pytest.raises(error, match=message):
            evaluate(x, labels, peers=Faulty(peer, spoil))

    run_together(2, measure)


@pytest.mark.parametrize("metrics", ["map@r", "nmi"])
@pytest.mark.parametrize("classes", [2, 20])
@pytest.mark.parametrize("separate", [False, True])
def test_no_exchange_takes_a_number_too_few(metrics: str, classes: int, separate: bool) -> None:
    """Let each exchange of an evaluation, in turn, lose its last number."""
    x, labels = np.random.default_rng(0).normal(size=(120, 4)), np.arange(120) % classes
    gallery = (x, labels) if separate else ()

    def count_and_fail(fails_at: int) -> int:
        def shorten(method: str, right: Any, own: Any, peer: Any) -> Any:
            return right[:-1] if peer.exchanges == fails_at else right

        def measure(peer: ThreadPeer) -> int:
            faulty, refused = Faulty(peer, shorten), nullcontext()
            if fails_at:
                refused = pytest.raises(ValueError, match=r"all_(gather|reduce) returned")
            with refused:
                evaluate(x, labels, *gallery, metrics=metrics, threads=1, peers=faulty)
            return faulty.exchanges

        return run_together(2, measure)[0]

    exchanges = count_and_fail(0)
    assert exchanges >= 2
    for fails_at in range(1, min(exchanges, 12) + 1):
        assert count_and_fail(fails_at) == fails_at


@pytest.mark.parametrize(
    ("rank", "world_size", "error"),
    [(2, 2, ValueError), (-1, 2, ValueError), (0, 0, ValueError), ("0", 2, TypeError)],
)
def test_an_impossible_rank_is_refused(rank: Any, world_size: Any, error: type[Exception]) -> None:
    peers: Any = SimpleNamespace(rank=rank, world_size=world_size)
    with pytest.raises(error, match=r"peers (has|is a SimpleNamespace with) rank"):
        evaluate(np.eye(4), np.zeros(4, int), peers=peers)


RATES = ("tar@far=0.5", "tar@far=0.1", "tar@far=1e-2", "tar@far=1e-3", "eer", "auc")
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 9, 160)
ROWS = {
    "distinct": RNG.normal(size=(9, 6))[LABELS] + 1.5 * RNG.normal(size=(160, 6)),
    "ties": np.column_stack([np.ones(160), RNG.integers(-1, 2, (160, 5))]),
    "twins": RNG.normal(size=(9, 6))[LABELS],
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("sizes", [(None, None), (300, 400), (1, 1)])
def test_ranks_verify_to_the_bits_of_one(kind: str, sizes: tuple[Any, Any]) -> None:
    """With small samples and lists, brackets are wrong and lists overflow on some ranks only."""
    rows = ROWS[kind].astype(np.float32)
    for similarity, arrays in (
        ("cosine", (rows, LABELS)),
        ("dot", (rows[:70], LABELS[:70], rows, LABELS)),
    ):
        measure: Any = partial(verify, *arrays, similarity=similarity, metrics=RATES, threads=1)
        expected = measure()
        with trial(verify_sample=sizes[0], verify_listed=sizes[1]):
            for world_size in (3,) if sizes == (1, 1) else (2, 5):
                for found in run_together(
                    world_size, lambda peer, measure=measure: measure(peers=peer)
                ):
                    assert_same_bits(found, expected)


@pytest.mark.parametrize(
    "work",
    [
        lambda peer: verify(ROWS["distinct"] + peer.rank, LABELS, peers=peer),
        lambda peer: verify(
            ROWS["distinct"], LABELS, metrics=f"tar@far=0.{1 + peer.rank}", peers=peer
        ),
    ],
    ids=["arrays", "metrics"],
)
def test_ranks_that_verify_differently_are_refused(work: Any) -> None:
    with pytest.raises(ValueError, match="different arrays or options than rank 0"):
        run_together(2, work)


def test_a_rank_that_changes_numbers_of_a_verification_is_an_error() -> None:
    def repeat(method: str, right: Any, own: Any, peer: Any) -> Any:
        return np.concatenate([own, own]) if method == "all_gather" else 2 * own

    with pytest.raises(ValueError, match="all_gather returned"):
        run_together(2, lambda peer: verify(ROWS["distinct"], LABELS, peers=Faulty(peer, repeat)))

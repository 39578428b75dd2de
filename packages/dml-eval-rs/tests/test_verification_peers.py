"""Ranks that share a verification get the bits of a single process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from eval_support.assertions import assert_same_bits
from eval_support.peers import run_together
from eval_support.trial import trial

from dml_eval_rs import verify

METRICS = ("tar@far=0.5", "tar@far=0.1", "tar@far=1e-2", "tar@far=1e-3", "eer", "auc")
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 9, 160)
ROWS = {
    "distinct": RNG.normal(size=(9, 6))[LABELS] + 1.5 * RNG.normal(size=(160, 6)),
    "ties": RNG.integers(-1, 2, (160, 6)) + 0.0,
    "twins": RNG.normal(size=(9, 6))[LABELS],
}
ROWS["ties"][:, 0] = 1


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("sizes", [(None, None), (300, 400), (1, 1)])
def test_ranks_get_the_bits_of_one_process(kind: str, sizes: tuple[Any, Any]) -> None:
    """Use small samples and lists, so that brackets are wrong and lists overflow, but only on some ranks."""
    rows = ROWS[kind].astype(np.float32)
    for similarity, gallery in (("cosine", False), ("dot", True)):
        arrays = (rows[:70], LABELS[:70], rows, LABELS) if gallery else (rows, LABELS)
        names: dict[str, Any] = {"similarity": similarity, "metrics": METRICS, "threads": 1}
        expected = verify(*arrays, **names)
        with trial(verify_sample=sizes[0], verify_listed=sizes[1]):
            for world_size in (3,) if sizes == (1, 1) else (2, 5):
                for found in run_together(
                    world_size, lambda peer, a=arrays, n=names: verify(*a, **n, peers=peer)
                ):
                    assert_same_bits(found, expected)


def test_ranks_with_other_arrays_are_an_error() -> None:
    rows = ROWS["distinct"]
    with pytest.raises(ValueError, match="different arrays or options than rank 0"):
        run_together(2, lambda peer: verify(rows + peer.rank, LABELS, peers=peer))
    with pytest.raises(ValueError, match="different arrays or options than rank 0"):
        run_together(2, lambda peer: verify(rows, LABELS, metrics=f"tar@far=0.{1 + peer.rank}", peers=peer))
    with pytest.raises(ValueError, match="pairs and peers are both given"):
        verify(rows, LABELS, pairs=[[0, 1]], peers=object())  # type: ignore[arg-type]


def test_a_rank_that_changes_numbers_is_an_error() -> None:
    rows = ROWS["distinct"].astype(np.float32)

    class Peer:
        rank, world_size = 0, 2

        def all_gather(self, numbers: np.ndarray) -> np.ndarray:
            return np.concatenate([numbers, numbers])

        def all_reduce(self, counts: np.ndarray) -> np.ndarray:
            return 2 * counts

    with pytest.raises(ValueError, match="all_gather returned"):
        verify(rows, LABELS, peers=Peer())

"""Gather rows over two ranks: ranks receive all rows and, in the backward pass, the gradients for
local rows.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from core_support import gathering_rank
from core_support.gathering_rank import CASES, DIM, loss, rows_and_labels

from dml_core import all_gather_rows, rank_and_world_size
from dml_core.testing.ranks import run_ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the results that were saved by two gloo ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(gathering_rank.gather, 2, folder)
    return [torch.load(folder / str(rank)) for rank in range(2)]


@pytest.mark.parametrize("gradients", [None, "sum", "mean"])
@pytest.mark.parametrize("name", CASES)
def test_every_rank_has_all_rows_and_the_gradient_of_its_own(
    ranks: list[dict[str, Any]], name: str, gradients: str | None
) -> None:
    counts = CASES[name]
    rows, labels = rows_and_labels(counts)
    leaf = rows.clone().requires_grad_()
    loss(leaf).backward()
    factor = 2 if gradients == "mean" else 1
    for rank, saved in enumerate(ranks):
        result = saved["results"][name, gradients]
        own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        assert torch.equal(result["rows"], rows)
        assert torch.equal(result["labels"], labels)
        assert torch.equal(result["gradient"], factor * leaf.grad[own])


def test_counts_that_do_not_match_the_rows_raise(ranks: list[dict[str, Any]]) -> None:
    for rank, saved in enumerate(ranks):
        expected = (
            f"expected a number for each of 2 ranks, and 2 for rank {rank}, whose rows have shape "
            "(2, 3)"
        )
        assert saved["error"] == f"counts is [3, 3]; {expected}"


def test_a_process_alone_has_its_rows() -> None:
    assert rank_and_world_size() == (0, 1)
    rows = torch.zeros(2, DIM)
    assert all_gather_rows(rows) is rows
    assert all_gather_rows(rows, [2], gradients="mean") is rows


@pytest.mark.parametrize("counts", [[1], [2, 2], []])
def test_counts_for_a_different_number_of_ranks_raise(counts: list[int]) -> None:
    with pytest.raises(
        ValueError, match=r"counts is \[.*\]; expected a number for each of 1 ranks"
    ):
        all_gather_rows(torch.zeros(2, DIM), counts)


def test_an_unknown_way_to_combine_gradients_raises() -> None:
    with pytest.raises(ValueError, match="gradients is 'max'; expected 'mean' or 'sum'"):
        all_gather_rows(torch.zeros(2, DIM), gradients="max")  # type: ignore[arg-type]

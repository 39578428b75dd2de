"""W ranks that share a global batch train as one process does: values, parameters and memories."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import distributed_world
import pytest
import torch

from dml_losses import GlobalBatch, InstanceCrossEntropy, NormSoftmax

Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Results]]:
    """What every rank of a world of one, two and four ended with."""
    folder, program = tmp_path_factory.mktemp("worlds"), Path(distributed_world.__file__)
    results = {}
    for size in (1, 2, 4):
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    program,
                    str(rank),
                    str(size),
                    folder / f"store-{size}",
                    folder / f"{size}-{rank}",
                ],
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        for process in processes:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors
        results[size] = [torch.load(folder / f"{size}-{rank}") for rank in range(size)]
    return results


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", distributed_world.make_losses())
def test_ranks_train_as_one_process_does(worlds: dict[int, list[Results]], size: int, name: str) -> None:
    """This pins what the value means under DDP's averaging: that of the global batch, its gradient whole."""
    alone = worlds[1][0][name]
    for rank in worlds[size]:
        # float64; sums over ranks are taken in another order, fifty steps long
        torch.testing.assert_close(rank[name]["values"], alone["values"], rtol=1e-10, atol=1e-10)
        for key, tensor in alone["state"].items():
            torch.testing.assert_close(rank[name]["state"][key], tensor, rtol=1e-10, atol=1e-10, msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["memvir", "memvir-proxy-anchor", "cross-batch-memory"])
def test_queues_are_identical_on_every_rank(worlds: dict[int, list[Results]], size: int, name: str) -> None:
    first, *others = (rank[name]["state"] for rank in worlds[size])
    queues = [key for key in first if "queue" in key]
    assert queues
    for other in others:
        for key in queues:
            assert torch.equal(other[key], first[key]), key


def test_without_a_process_group_it_is_the_loss_itself() -> None:
    loss = InstanceCrossEntropy()
    x, y = torch.randn(6, 4), torch.arange(6) // 2
    assert torch.equal(GlobalBatch(loss)(x, y), loss(x, y))
    assert torch.equal(GlobalBatch(loss)(x, y, x, y), loss(x, y, x, y))


def test_it_is_of_the_kind_of_its_loss() -> None:
    inner = NormSoftmax(3, 4)
    assert GlobalBatch(inner).class_weights is inner.class_weights
    assert not hasattr(GlobalBatch(InstanceCrossEntropy()), "class_weights")


def test_another_way_to_combine_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match="gradients is 'max'; expected 'mean' or 'sum'"):
        GlobalBatch(InstanceCrossEntropy(), gradients="max")  # type: ignore[arg-type]

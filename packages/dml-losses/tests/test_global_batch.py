"""Ranks that share a global batch train like a single process: values, parameters and memories
agree.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from losses_support import global_world
from torch import Tensor, nn

import dml_losses as dml
from dml_core.testing import RanksContract
from dml_core.testing.ranks import run_ranks
from dml_losses import GlobalBatch, InstanceCrossEntropy, NormSoftmax, plugin


@cache
def train_alone(name: str, device: str) -> dict[str, Any]:
    """Train in this process; any number of ranks must agree with it."""
    return global_world.train(name, rank=0, world_size=1, device=device)


def on_gpus(size: int) -> Any:
    """Return the case with `size` ranks on different GPUs, over NCCL."""
    skip = pytest.mark.skipif(
        torch.cuda.device_count() < size,
        reason=f"needs {size} CUDA devices; gloo on the CPU does the same",
    )
    return pytest.param(size, "cuda", marks=[pytest.mark.gpu, skip])


@pytest.mark.slow
@pytest.mark.parametrize(("size", "device"), [(2, "cpu"), (4, "cpu"), on_gpus(2), on_gpus(4)])
def test_ranks_train_as_one_process_does(size: int, device: str, tmp_path: Path) -> None:
    """With DDP's averaging, ranks compute the global batch's value and gradient."""
    run_ranks(global_world.train_on_ranks, size, size, tmp_path, device)
    world = [torch.load(tmp_path / str(rank)) for rank in range(size)]
    for name in [*global_world.make_losses(), "in micro-batches"]:
        alone = train_alone("ice" if name == "in micro-batches" else name, device)
        for rank, result in enumerate(ended[name] for ended in world):
            # Ranks add up float64 numbers in a different order, over sixteen steps.
            assert result["values"] == pytest.approx(alone["values"], rel=1e-10, abs=1e-10), name
            for key, tensor in alone["state"].items():
                got = result["state"][key]
                torch.testing.assert_close(
                    got, tensor, rtol=1e-10, atol=1e-10, msg=f"{name}, rank {rank}: {key}"
                )
                if (
                    "queue" in key and device == "cpu"
                ):  # on GPUs, sums of gradients may differ between ranks
                    assert torch.equal(got, world[0][name]["state"][key]), (
                        f"{name}, rank {rank}: {key}"
                    )


@pytest.mark.slow
class TestSummedGradients(RanksContract):
    gradients = "sum"

    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return GlobalBatch(dml.SupCon(), gradients="sum")


class TestTwoTowers(RanksContract):
    """Each rank has images with their texts, and both towers train; the rows can't be shared
    evenly.
    """

    rows_per_rank = (20, 13)

    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        losses = [
            loss
            for over_ranks in (False, True)
            for loss in (
                dml.SigLIP(5.0, -1.0, over_ranks=over_ranks),
                dml.InfoNCE(0.2, over_ranks=over_ranks),
                dml.InfoNCE(0.2, symmetric=False, over_ranks=over_ranks),
            )
        ]
        return nn.ModuleList(GlobalBatch(loss, gather_gallery=True) for loss in losses)

    def compute_loss(self, loss: nn.ModuleList, embeddings: Tensor, labels: Tensor) -> Tensor:
        image, text = embeddings.chunk(2, dim=1)
        values = [each(image, labels, text, labels) for each in loss]
        assert torch.allclose(
            torch.stack(values[:3]), torch.stack(values[3:])
        )  # `over_ranks` doesn't change the value
        return torch.stack(values).sum()


@pytest.mark.slow
class TestTwoTowersOnFourRanks(TestTwoTowers):
    rows_per_rank = (30, 1, 20, 7)


def test_without_a_process_group_it_is_the_loss_itself() -> None:
    loss = InstanceCrossEntropy()
    x, y = torch.randn(6, 4), torch.arange(6) // 2
    assert torch.equal(GlobalBatch(loss)(x, y), loss(x, y))
    for gather_gallery in (False, True):
        assert torch.equal(GlobalBatch(loss, "mean", gather_gallery)(x, y, x, y), loss(x, y, x, y))


def test_it_has_class_weights_if_its_loss_has() -> None:
    inner = NormSoftmax(3, 4)
    assert GlobalBatch(inner).class_weights is inner.class_weights
    assert not hasattr(GlobalBatch(InstanceCrossEntropy()), "class_weights")


def test_an_unknown_way_to_combine_gradients_raises() -> None:
    with pytest.raises(ValueError, match="gradients is 'max'; expected 'mean' or 'sum'"):
        GlobalBatch(InstanceCrossEntropy(), gradients="max")  # type: ignore[arg-type]


def test_a_recipe_cannot_name_it_since_the_trainer_gathers_rows_itself() -> None:
    assert all(component.factory is not GlobalBatch for component in plugin.dml_losses())

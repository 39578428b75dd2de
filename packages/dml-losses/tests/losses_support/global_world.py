"""Ranks that train with all kinds of losses; multiple ranks must agree with `train` on a single
rank.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import dml_losses as dml
from dml_core import backward_in_micro_batches
from dml_core.testing.ranks import joined

# Memories are full and wrap after three steps (the queue with 23 rows) or seven (MemVir's warm-up
# and queue).
CLASSES, DIM, STEPS = 6, 5, 16


def make_losses() -> dict[str, nn.Module]:
    return {
        "ice": dml.InstanceCrossEntropy(scale=8.0),
        "ice-plain": dml.InstanceCrossEntropy(scale=8.0, reweight=False),
        "ranked-list": dml.RankedListLoss(),
        "ranked-list-total": dml.RankedListLoss(query_weights="total"),
        "triplet-all": dml.Triplet("batch-all"),
        "multi-similarity": dml.MultiSimilarity(),
        "info-nce-over-ranks": dml.InfoNCE(0.2, over_ranks=True),
        "recall-at-k-surrogate": dml.RecallAtKSurrogate(rank_temperature=0.1),
        "siglip": dml.SigLIP(5.0, -1.0),
        "siglip-over-ranks": dml.SigLIP(5.0, -1.0, over_ranks=True),
        "matryoshka": dml.Matryoshka(dml.AdaFace(CLASSES, DIM, scale=8.0), [2, DIM]),
        "sum": dml.SumOfLosses({"classes": dml.NormSoftmax(CLASSES, DIM), "spread": dml.KoLeo()}),
        "norm-softmax": dml.NormSoftmax(CLASSES, DIM),
        "norm-softmax-fraction": dml.SampledClasses(dml.NormSoftmax(CLASSES, DIM), 0.5),
        "heated-up-batch": dml.HeatedUpSoftmax(CLASSES, DIM, feature_norm="batch"),
        "ada-face": dml.AdaFace(CLASSES, DIM, scale=8.0, momentum=0.3),
        "curricular-face": dml.CurricularFace(CLASSES, DIM, scale=8.0),
        "proxy-anchor": dml.ProxyAnchor(CLASSES, DIM),
        "memvir": dml.MemVir(dml.NormSoftmax(CLASSES, DIM), 2, 1, 3),
        "memvir-proxy-anchor": dml.MemVir(dml.ProxyAnchor(CLASSES, DIM), 2, 1, 3),
        "cross-batch-memory": dml.CrossBatchMemory(dml.InstanceCrossEntropy(scale=8.0), 23, 2),
    }


def global_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw eleven rows, which can't be shared evenly by 2 or 4 ranks."""
    generator = torch.Generator().manual_seed(step)
    return (
        torch.randn(11, DIM, generator=generator, dtype=torch.float64),
        torch.randint(0, CLASSES, (11,), generator=generator),
    )


def train(
    name: str, rank: int, world_size: int, device: str = "cpu", micro_batch: int | None = None
) -> dict[str, Any]:
    """Train; return the values of all steps, and the final state on the CPU."""
    torch.manual_seed(0)
    loss = dml.GlobalBatch(make_losses()[name].double()).to(device)
    network: nn.Module = nn.Linear(DIM, DIM).double().to(device)
    # The loss isn't wrapped, since all ranks compute the full gradient of the loss's parameters.
    model = nn.parallel.DistributedDataParallel(network) if world_size > 1 else network
    optimizer = torch.optim.SGD([*network.parameters(), *loss.parameters()], lr=0.05)
    values = []
    for index in range(STEPS):
        x, y = (part.tensor_split(world_size)[rank].to(device) for part in global_batch(index))
        optimizer.zero_grad()
        if micro_batch is None:
            value = loss(model(x), y)
            value.backward()
        else:
            value = backward_in_micro_batches(
                model, x, lambda rows, y=y: loss(rows, y), micro_batch
            )
        optimizer.step()
        values.append(value.item())
    state = {**network.state_dict(), **loss.state_dict()}
    return {"values": values, "state": {key: tensor.cpu().clone() for key, tensor in state.items()}}


def train_on_ranks(rank: int, world_size: int, folder: Path, device: str) -> None:
    """Join the other ranks, train with all losses; save the results in the folder."""
    if device == "cuda":
        torch.cuda.set_device(rank)
    with joined(rank, world_size, folder, "nccl" if device == "cuda" else "gloo"):
        results = {name: train(name, rank, world_size, device) for name in make_losses()}
        results["in micro-batches"] = train("ice", rank, world_size, device, micro_batch=2)
        torch.save(results, folder / str(rank))

"""Train with sharded class weights on gloo ranks, which must agree with unsharded `train`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy, normalize, softplus

import dml_losses as dml
from dml_core import ClassShard
from dml_core.testing.ranks import joined
from dml_losses.functional import cosine_softmax as kernel

CLASSES, DIM, STEPS = 7, 5, 8


class PluginLoss(nn.Module):
    """A class loss in a plugin that only imports `dml_core`.

    The gradient takes all possible ways: all ranks compute the margin and the embedding's length;
    all logits grow with the true class's logit, which is known on a single rank.
    """

    def __init__(self, num_classes: int, embedding_dim: int) -> None:
        super().__init__()
        self.class_weights = nn.Parameter(torch.randn(num_classes, embedding_dim))

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        length = torch.linalg.vector_norm(embeddings, dim=1)
        logits = self._logits(
            embeddings, self.class_weights if class_weights is None else class_weights
        )
        true = logits.gather(1, labels[:, None])
        logits = (logits + 0.1 * logits * true).scatter(1, labels[:, None], true - length[:, None])
        return cross_entropy(logits, labels) + 0.1 * length.mean()

    def sharded_forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, shard: ClassShard
    ) -> torch.Tensor:
        length = torch.linalg.vector_norm(embeddings, dim=1)
        logits = self._logits(embeddings, shard.class_weights)
        true = shard.true_logits(logits, labels)
        others = shard.other_logits(logits + 0.1 * logits * true[:, None], labels)
        return softplus(others - (true - length)).mean() + 0.1 * length.mean()

    def _logits(self, embeddings: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return 4 * normalize(embeddings) @ normalize(weights).T


LOSSES: dict[str, Callable[[], nn.Module]] = {
    "softmax": lambda: dml.Softmax(CLASSES, DIM),
    "virtual-softmax": lambda: dml.VirtualSoftmax(CLASSES, DIM),
    "norm-softmax": lambda: dml.NormSoftmax(CLASSES, DIM),
    "norm-softmax-fraction": lambda: dml.SampledClasses(dml.NormSoftmax(CLASSES, DIM), 0.6),
    "norm-softmax-own-classes": lambda: dml.SampledClasses(dml.NormSoftmax(CLASSES, DIM), 0.01),
    "cos-face": lambda: dml.CosFace(CLASSES, DIM, scale=8.0),
    "arc-face": lambda: dml.ArcFace(CLASSES, DIM, scale=8.0),
    "sub-center-arc-face": lambda: dml.SubCenterArcFace(CLASSES, DIM, 3, scale=8.0),
    "sub-center-fraction": lambda: dml.SampledClasses(
        dml.SubCenterArcFace(CLASSES, DIM, 2, scale=8.0), 0.6
    ),
    "ada-face": lambda: dml.AdaFace(CLASSES, DIM, scale=8.0, momentum=0.3, concentration=2.0),
    "ada-face-fraction": lambda: dml.SampledClasses(
        dml.AdaFace(CLASSES, DIM, scale=8.0, momentum=0.3), 0.6
    ),
    "virtual-softmax-fraction": lambda: dml.SampledClasses(dml.VirtualSoftmax(CLASSES, DIM), 0.6),
    "curricular-fraction": lambda: dml.SampledClasses(
        dml.CurricularFace(CLASSES, DIM, scale=8.0), 0.6
    ),
    "matryoshka-fraction": lambda: dml.SampledClasses(
        dml.Matryoshka(dml.ArcFace(CLASSES, DIM, scale=8.0), [2, DIM]), 0.6
    ),
    "matryoshka": lambda: dml.Matryoshka(dml.AdaFace(CLASSES, DIM, scale=8.0), [2, DIM]),
    "matryoshka-softmax": lambda: dml.Matryoshka(dml.Softmax(CLASSES, DIM), [2, DIM]),
    "curricular-face": lambda: dml.CurricularFace(CLASSES, DIM, scale=8.0, momentum=0.3),
    "heated-up-softmax": lambda: dml.HeatedUpSoftmax(CLASSES, DIM),
    "heated-up-batch": lambda: dml.HeatedUpSoftmax(CLASSES, DIM, feature_norm="batch"),
    "proxy-nca": lambda: dml.ProxyNCA(CLASSES, DIM, scale=3.0),
    "proxy-nca-softmax": lambda: dml.ProxyNCA(CLASSES, DIM, positive_in_denominator=True),
    "a-plugin's": lambda: PluginLoss(CLASSES, DIM),
}


def global_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw eleven rows, which can't be shared evenly by 2 or 4 ranks; in some steps, all are in a
    single class.
    """
    generator = torch.Generator().manual_seed(step)
    return (
        torch.randn(11, DIM, generator=generator, dtype=torch.float64),
        torch.randint(0, 1 + step % CLASSES, (11,), generator=generator),
    )


def train(name: str, rank: int, world_size: int, *, sharded: bool) -> dict[str, Any]:
    """Train; return the values of all steps, the final state, and this rank's rows of all
    parameters.
    """
    torch.manual_seed(0)
    module = (
        dml.ShardedClasses(lambda: LOSSES[name]().double()) if sharded else LOSSES[name]().double()
    )
    loss = dml.GlobalBatch(module)
    inner = module.loss if sharded else module
    network = nn.Linear(DIM, DIM).double()
    values = []
    for index in range(STEPS):
        x, y = (part.tensor_split(world_size)[rank] for part in global_batch(index))
        value = loss(network(x), y)
        value.backward()
        # Work like DistributedDataParallel and SGD, which would take seconds to import.
        for parameter in network.parameters() if world_size > 1 else []:
            distributed.all_reduce(parameter.grad)
            parameter.grad /= world_size
        for parameter in [*network.parameters(), *loss.parameters()]:
            parameter.data.add_(parameter.grad, alpha=-0.05)
            parameter.grad = None
        values.append(value.item())
    state = {**network.state_dict(), **inner.state_dict()}
    state = {key: tensor.clone() for key, tensor in state.items()}
    rows = loss.loss.sharded_parameters() if sharded else {}
    return {
        "values": values,
        "state": state,
        "rows": {key: tuple(value) for key, value in rows.items()},
    }


def report_write_errors(world_size: int, made_before: nn.Module) -> dict[str, str]:
    """Collect the errors for too few classes, and for a loss made before the ranks joined."""
    batch = torch.randn(2, DIM), torch.tensor([0, 1])
    wrong: dict[str, Callable[[], object]] = {
        "too few classes": lambda: dml.ShardedClasses(dml.NormSoftmax(world_size - 1, DIM)),
        "made before": lambda: made_before(*batch),
    }
    messages = {}
    for name, act in wrong.items():
        try:
            act()
        except (ValueError, RuntimeError) as error:
            messages[name] = f"{type(error).__name__}: {error}"
    return messages


def train_on_ranks(rank: int, folder: Path, sizes: Sequence[int]) -> None:
    """Train as this rank in worlds of different sizes, in turn; save the results."""
    if rank % 2:  # even ranks keep the derivatives of all local classes
        kernel._KEPT_ELEMENTS, kernel._BLOCK_ELEMENTS, kernel._FEWEST_COLUMNS = (
            {"cpu": 0},
            {"cpu": 0},
            1,
        )
    for size in sizes:
        if rank >= size:
            continue
        made_before = dml.ShardedClasses(dml.NormSoftmax(CLASSES, DIM))
        with joined(rank, size, folder):
            results = {name: train(name, rank, size, sharded=True) for name in LOSSES}
            smallest = dml.ShardedClasses(dml.NormSoftmax(size, DIM)).sharded_parameters()
            saved = {
                "results": results,
                "report_write_errors": report_write_errors(size, made_before),
                "smallest": tuple(smallest["loss.class_weights"]),
            }
            torch.save(saved, folder / f"{rank} of {size}")

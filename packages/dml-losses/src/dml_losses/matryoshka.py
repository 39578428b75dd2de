"""Matryoshka representation learning: a sum of losses over nested prefixes of the embedding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import torch

from dml_core import (
    ClassShard,
    ShardedLoss,
    centers_per_class_of,
    class_fraction_of,
    is_class_loss,
    is_shardable,
)
from dml_losses.arguments import check_non_negative, check_whole, show
from dml_losses.class_weights import take_class_weights
from dml_losses.functional.sphere import full_precision


class Matryoshka(torch.nn.Module):
    """The weighted sum of a loss over nested prefixes of the embedding, so that each prefix can be
    used separately.

    L = Σ_m c_m · l(x_{1:m}; W_{1:m})

    Source: Kusupati et al. 2022, Matryoshka Representation Learning, its loss with tied class
    weights (MRL-E): the weights of a prefix are the prefix of the weights. So all prefixes use one
    matrix of class weights, which takes no extra memory and can be sharded. Each prefix has a copy
    of the other state: buffers, learned scalars and memory.

    Args:
        loss: any pair loss, or a class loss with a parameter ``class_weights``. Put memories of
            class weights outside: ``MemVir(Matryoshka(ArcFace(…), …), …)``. The loss is changed:
            its class weights move to this module.
        prefixes: the lengths m, which must increase; the last must be the embedding's dimension.
        weights: c_m ≥ 0 per prefix; by default, 1, as in the paper.
        embedding_dim: the embedding's dimension, used to check the prefixes; set by dml-train.

    Attributes:
        loss: the loss of the full embedding. If a schedule changes its attributes, the losses of
            other prefixes follow.
        class_weights: (C, D), only for a class loss. Pass it to the optimizer.

    Raises:
        TypeError: if prefixes aren't integers, weights aren't numbers, or the loss lacks (a part
            of) its class weights.
        ValueError: if prefixes don't increase to the dimension, there aren't as many weights as
            prefixes, a weight is below 0, or the loss uses a fraction of the classes.
    """

    def __init__(
        self,
        loss: torch.nn.Module,
        prefixes: Sequence[int],
        weights: Sequence[float] | None = None,
        embedding_dim: int | None = None,
    ) -> None:
        super().__init__()
        if (fraction := class_fraction_of(loss)) < 1:
            raise ValueError(
                f"loss is {type(loss).__name__} with class_fraction = {fraction}; expected "
                "class_fraction = 1, since a sparse gradient can't be cut to a prefix: put "
                "SampledClasses around Matryoshka"
            )
        if "class_weights" in (held := dict(loss.named_parameters(recurse=False))):
            embedding_dim = held["class_weights"].shape[1]
        self.prefixes = _check_prefixes(prefixes, embedding_dim)
        self.weights = [1.0] * len(self.prefixes) if weights is None else list(weights)
        if len(self.weights) != len(self.prefixes):
            raise ValueError(
                f"weights is {weights}; expected one for each of the prefixes {self.prefixes}"
            )
        for weight in self.weights:
            check_non_negative("weights", weight)
        if is_class_loss(loss) or any(isinstance(module, ShardedLoss) for module in loss.modules()):
            self.class_weights = take_class_weights(loss, "Matryoshka")
        self.shorter = torch.nn.ModuleList(copy.deepcopy(loss) for _ in self.prefixes[:-1])
        self.loss = loss
        # Schedules can set these numbers, or make an int a float. List them now: torch 2.8 can't
        # compile `vars`.
        numbers = [name for name, value in vars(loss).items() if isinstance(value, int | float)]
        self._numbers = [name for name in numbers if not isinstance(getattr(loss, name), bool)]
        if hasattr(self, "class_weights"):
            for prefix, each in self._losses():
                each.class_weights = torch.empty(len(self.class_weights), prefix, device="meta")

    @property
    def centers_per_class(self) -> int:
        """The number of class weights per class; see `dml_core.MultiCenter`."""
        return centers_per_class_of(self.loss)

    def forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, *others: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,).

        Further arguments are the same as for the loss: a gallery (G, D) and its labels (G,), or
        class weights (C, D).

        Raises:
            ValueError: if the embeddings don't have the last prefix as dimension; see also the
                loss.
        """
        if hasattr(self, "class_weights") and not any(other is not None for other in others):
            others = (self.class_weights,)
        # Sum the prefixes' gradients here, in float32: the sum of finite float16 numbers can exceed
        # the range.
        embeddings = full_precision(embeddings)
        rows = [row if row is None else full_precision(row) for row in others[:1]]

        def loss_of(prefix: int, loss: torch.nn.Module) -> torch.Tensor:
            cut = (row if row is None else row[:, :prefix] for row in rows)
            value: torch.Tensor = loss(embeddings[:, :prefix], labels, *cut, *others[1:])
            return value

        return self._sum(embeddings, loss_of)

    @property
    def sharded_forward(self) -> Callable[[torch.Tensor, torch.Tensor, ClassShard], torch.Tensor]:
        """Compute the same loss from this rank's classes, if the loss supports it; see
        `dml_core.ShardableLoss`.
        """
        if not is_shardable(self.loss):
            raise AttributeError(f"{type(self.loss).__name__} has no sharded_forward")
        return self._sharded_forward

    def _sharded_forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, shard: ClassShard
    ) -> torch.Tensor:
        def loss_of(prefix: int, loss: torch.nn.Module) -> torch.Tensor:
            assert is_shardable(loss)
            cut = copy.copy(shard)
            cut.class_weights = shard.class_weights[:, :prefix]
            return loss.sharded_forward(embeddings[:, :prefix], labels, cut)

        return self._sum(embeddings, loss_of)

    def _sum(
        self, embeddings: torch.Tensor, loss_of: Callable[[int, torch.nn.Module], torch.Tensor]
    ) -> torch.Tensor:
        if embeddings.dim() == 2 and embeddings.shape[1] != self.prefixes[-1]:
            raise ValueError(
                f"embeddings has shape {tuple(embeddings.shape)}; expected (batch, "
                f"{self.prefixes[-1]}), the last of the prefixes {self.prefixes}"
            )
        for name in self._numbers:
            value = getattr(self.loss, name)
            if isinstance(value, float):
                for each in self.shorter:
                    setattr(each, name, value)
        values = [
            weight * loss_of(prefix, each)
            for weight, (prefix, each) in zip(self.weights, self._losses(), strict=True)
        ]
        return torch.stack(values).sum()

    def _losses(self) -> Iterable[tuple[int, torch.nn.Module]]:
        return zip(self.prefixes, [*self.shorter, self.loss], strict=True)

    extra_repr = show("prefixes", "weights")


def _check_prefixes(prefixes: Sequence[int], embedding_dim: int | None) -> list[int]:
    found = [check_whole("prefixes", prefix, 1) for prefix in prefixes]
    if not found or any(b <= a for a, b in pairwise(found)):
        raise ValueError(f"prefixes is {found}; expected ascending lengths, such as [32, 64, 128]")
    if embedding_dim is not None and found[-1] != embedding_dim:
        raise ValueError(
            f"prefixes is {found}; expected the last to be the embedding's dimension, "
            f"{embedding_dim}"
        )
    return found

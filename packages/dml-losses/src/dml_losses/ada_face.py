"""AdaFace as a module."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dml_core import ClassShard
from dml_losses.arguments import (
    check_angle,
    check_batch,
    check_class_weights,
    check_fraction,
    check_non_negative,
    check_positive,
)
from dml_losses.class_sampler import ClassSampler, check_no_virtual_classes
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.ada_face import ada_face, limited_norms, quality_margins
from dml_losses.functional.cosine_softmax import Virtual
from dml_losses.functional.sphere import common_precision, unit_rows
from dml_losses.ranks.sharded_softmax import sharded_softmax


class AdaFace(torch.nn.Module):
    """Softmax of scaled cosines, with margins at the true class that follow the embedding's length.

    The equation is in `dml_losses.functional.ada_face`. Its μ and σ are moving averages of the batches' mean length and
    of its standard deviation: μ ← α·mean_b ‖x_b‖ + (1 − α)·μ, σ likewise, at each call in training mode, before
    their use. A batch of one moves μ alone. If the network normalises its embeddings, the loss is CosFace. With a
    `class_fraction` below 1 the sum is over the batch's classes and a random choice of the others; see `NormSoftmax`.

    Source: Kim et al. 2022, AdaFace: Quality Adaptive Margin for Face Recognition.

    Args:
        num_classes: C ≥ 1.
        embedding_dim: D ≥ 1.
        scale: s > 0; 64 in the paper.
        margin: m in [0, π/2); 0.4 in the paper.
        concentration: h ≥ 0; 0.333 in the paper.
        momentum: α in [0, 1], the newest batch's share in μ and σ; 0.01 in the authors' code.
        class_fraction: in (0, 1].
        seed: for the choice of classes.

    Attributes:
        class_weights: (C, D), drawn uniformly from ±1/√D. Give it to the optimizer.
        norm_mean, norm_std: μ and σ, scalar buffers that start at 20 and 100, as in the authors' code.

    Raises:
        TypeError: unless the sizes and the seed are whole numbers, and all other parameters numbers.
        ValueError: for a parameter outside its range.
    """

    norm_mean: torch.Tensor
    norm_std: torch.Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        scale: float = 64.0,
        margin: float = 0.4,
        concentration: float = 0.333,
        momentum: float = 0.01,
        class_fraction: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.class_weights = initial_class_weights(num_classes, embedding_dim)
        self.scale = check_positive("scale", scale)
        self.margin = check_angle("margin", margin)
        self.concentration = check_non_negative("concentration", concentration)
        self.momentum = check_fraction("momentum", momentum)
        self._sampler = ClassSampler(class_fraction, seed)
        self.class_fraction, self.seed = float(class_fraction), seed
        self.register_buffer("norm_mean", torch.tensor(20.0))
        self.register_buffer("norm_std", torch.tensor(100.0))

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
        virtual: Virtual | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C); see `MemVir` for `virtual`.

        In training mode, update μ and σ first.
        """
        weights = self.class_weights if class_weights is None else class_weights
        check_batch(embeddings, labels)
        check_class_weights(embeddings, labels, weights)
        check_no_virtual_classes(self.class_fraction, virtual)
        if self.training:
            self._track(limited_norms(embeddings))
        weights, labels, _ = self._sampler.choose(labels, weights, self.class_fraction)
        return ada_face(
            embeddings,
            labels,
            weights,
            self.norm_mean,
            self.norm_std,
            scale=self.scale,
            margin=self.margin,
            concentration=self.concentration,
            virtual=virtual,
        )

    def sharded_forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, shard: ClassShard
    ) -> torch.Tensor:
        """Compute the same loss from this rank's classes; see `dml_core.ShardableLoss`."""
        norms_B = limited_norms(embeddings)
        if self.training:
            self._track(norms_B)
        weights, labels, first = self._sampler.choose_of_shard(labels, shard, self.class_fraction)
        features_BD, weights_LD = common_precision(embeddings, weights)
        margins_B2 = quality_margins(norms_B, self.norm_mean, self.norm_std, self.margin, self.concentration)
        return sharded_softmax(
            unit_rows(features_BD),
            labels,
            weights_LD,
            first,
            self.scale,
            row_margins=margins_B2.to(features_BD.dtype),
        )

    @torch.no_grad()
    def _track(self, norms_B: torch.Tensor) -> None:
        """Move μ and σ towards a batch's."""
        self.norm_mean.lerp_(norms_B.mean().to(self.norm_mean.dtype), self.momentum)
        if len(norms_B) > 1:
            self.norm_std.lerp_(norms_B.std().to(self.norm_std.dtype), self.momentum)

    def extra_repr(self) -> str:
        """Return the parameters, for `repr`."""
        num_classes, embedding_dim = self.class_weights.shape
        return (
            f"{num_classes}, {embedding_dim}, scale={self.scale}, margin={self.margin}, "
            f"concentration={self.concentration}, momentum={self.momentum}, class_fraction={self.class_fraction}, "
            f"seed={self.seed}"
        )

    def sparse_parameters(self) -> Sequence[str]:
        """Name the class weights, if made with a `class_fraction` below 1; see `dml_core.SparseLoss`."""
        return ("class_weights",) if self._sampler.sparse else ()

    def get_extra_state(self) -> torch.Tensor:
        """Return the number of subsets drawn, so that a resumed run draws the same subsets as an uninterrupted one."""
        return torch.tensor(self._sampler.count)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Restore the number of subsets drawn."""
        self._sampler.count = int(state)

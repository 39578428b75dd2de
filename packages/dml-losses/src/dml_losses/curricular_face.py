"""CurricularFace as a module."""

from __future__ import annotations

import torch

from dml_core import ClassShard
from dml_losses.arguments import check_angle, check_fraction, check_positive
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.curricular_face import curricular_face, mean_true_cosine
from dml_losses.functional.sphere import common_precision, unit_rows
from dml_losses.ranks.sharded_softmax import sharded_softmax, true_cosines


class CurricularFace(torch.nn.Module):
    """ArcFace with hard negatives whose weight grows during training.

    The equation is in `dml_losses.functional.curricular_face`. Its t is the moving average of the batches' mean
    cosine with their classes: t ← μ·mean_b cos θ_y + (1 − μ)·t at each call in training mode, before its use.

    Source: Huang et al. 2020, CurricularFace.

    Args:
        num_classes: C ≥ 1.
        embedding_dim: D ≥ 1.
        scale: s > 0; 64 in the paper.
        margin: m in radians, in [0, π/2); 0.5 in the paper.
        momentum: μ in [0, 1], the newest batch's share in t; 0.01 in the authors' code.

    Attributes:
        class_weights: (C, D), drawn uniformly from ±1/√D. Give it to the optimizer.
        progress: t, a scalar buffer that starts at 0.

    Raises:
        TypeError: unless the sizes are whole numbers, and all other parameters numbers.
        ValueError: for a parameter outside its range.
    """

    progress: torch.Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        scale: float = 64.0,
        margin: float = 0.5,
        momentum: float = 0.01,
    ) -> None:
        super().__init__()
        self.class_weights = initial_class_weights(num_classes, embedding_dim)
        self.scale = check_positive("scale", scale)
        self.margin = check_angle("margin", margin)
        self.momentum = check_fraction("momentum", momentum)
        self.register_buffer("progress", torch.zeros(()))

    def forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, class_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C). In training mode, update t first."""
        weights = self.class_weights if class_weights is None else class_weights
        if self.training:
            with torch.no_grad():
                self._track(mean_true_cosine(embeddings, labels, weights))
        return curricular_face(
            embeddings, labels, weights, self.progress, scale=self.scale, margin=self.margin
        )

    def sharded_forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, shard: ClassShard
    ) -> torch.Tensor:
        """Compute the same loss from this rank's classes; see `dml_core.ShardableLoss`."""
        features_BD, weights_LD = common_precision(embeddings, shard.class_weights)
        unit_BD = unit_rows(features_BD)
        if self.training:
            self._track(true_cosines(unit_BD, labels, weights_LD, shard.first).mean())
        return sharded_softmax(
            unit_BD,
            labels,
            weights_LD,
            shard.first,
            self.scale,
            angular_margin=self.margin,
            progress=self.progress,
        )

    @torch.no_grad()
    def _track(self, fit: torch.Tensor) -> None:
        """Move t towards a batch's mean cosine with its classes, a scalar."""
        self.progress.lerp_(fit.to(self.progress.dtype), self.momentum)

    def extra_repr(self) -> str:
        """Return the parameters, for `repr`."""
        num_classes, embedding_dim = self.class_weights.shape
        return f"{num_classes}, {embedding_dim}, scale={self.scale}, margin={self.margin}, momentum={self.momentum}"

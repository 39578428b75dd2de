"""ArcFace as a module."""

from __future__ import annotations

import torch

from dml_core import ClassShard
from dml_losses.arguments import check_angle, check_positive
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.arc_face import arc_face
from dml_losses.functional.cosine_softmax import Virtual
from dml_losses.functional.sphere import common_precision, unit_rows
from dml_losses.ranks.sharded_softmax import sharded_softmax


class ArcFace(torch.nn.Module):
    """Softmax of scaled cosines, with a margin added to the true class's angle.

    L = −mean_b log( e^{s·cos(θ_y + m)} / (e^{s·cos(θ_y + m)} + Σ_{c≠y} e^{s·cos θ_c}) )

    Source: Deng et al. 2019, ArcFace, Eq. 3.

    Args:
        num_classes: C ≥ 1.
        embedding_dim: D ≥ 1.
        scale: s > 0; 64 in the paper.
        margin: m in radians, in [0, π/2); 0.5 in the paper.

    Attributes:
        class_weights: (C, D), drawn uniformly from ±1/√D. Give it to the optimizer.

    Raises:
        TypeError: unless the sizes are whole numbers, and all other parameters numbers.
        ValueError: for a parameter outside its range.
    """

    def __init__(
        self, num_classes: int, embedding_dim: int, scale: float = 64.0, margin: float = 0.5
    ) -> None:
        super().__init__()
        self.class_weights = initial_class_weights(num_classes, embedding_dim)
        self.scale = check_positive("scale", scale)
        self.margin = check_angle("margin", margin)

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
        virtual: Virtual | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C); see `MemVir` for `virtual`."""
        weights = self.class_weights if class_weights is None else class_weights
        return arc_face(embeddings, labels, weights, scale=self.scale, margin=self.margin, virtual=virtual)

    def sharded_forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, shard: ClassShard
    ) -> torch.Tensor:
        """Compute the same loss from this rank's classes; see `dml_core.ShardableLoss`."""
        features_BD, weights_LD = common_precision(embeddings, shard.class_weights)
        return sharded_softmax(
            unit_rows(features_BD), labels, weights_LD, shard.first, self.scale, angular_margin=self.margin
        )

    def extra_repr(self) -> str:
        """Return the parameters, for `repr`."""
        num_classes, embedding_dim = self.class_weights.shape
        return f"{num_classes}, {embedding_dim}, scale={self.scale}, margin={self.margin}"

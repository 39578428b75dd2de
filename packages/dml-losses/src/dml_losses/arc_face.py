"""ArcFace as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_angle, check_positive, show
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.arc_face import arc_face
from dml_losses.functional.classes import ClassWeights, takes_virtual


class ArcFace(torch.nn.Module):
    """Softmax of scaled cosines, with a margin added to the true class's angle:
    `dml_losses.functional.arc_face`.

    Use it if there are many classes and embeddings are compared with a threshold, for example
    embeddings of faces.

    Args:
        num_classes, embedding_dim: C and D, both at least 1.
        scale, margin: see `arc_face`.

    Attributes:
        class_weights: (C, D), drawn uniformly from ±1/√D. Pass it to the optimizer.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.
    """

    def __init__(
        self, num_classes: int, embedding_dim: int, scale: float = 64.0, margin: float = 0.5
    ) -> None:
        super().__init__()
        self.class_weights = initial_class_weights(num_classes, embedding_dim)
        self.scale = check_positive("scale", scale)
        self.margin = check_angle("margin", margin)

    @takes_virtual
    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: ClassWeights | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C)."""
        weights = self.class_weights if class_weights is None else class_weights
        return arc_face(embeddings, labels, weights, scale=self.scale, margin=self.margin)

    sharded_forward = forward
    extra_repr = show("scale", "margin")

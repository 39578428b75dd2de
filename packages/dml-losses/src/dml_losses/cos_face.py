"""CosFace as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_non_negative, check_positive, show
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.classes import ClassWeights, takes_virtual
from dml_losses.functional.cos_face import cos_face


class CosFace(torch.nn.Module):
    """Softmax of scaled cosines, minus a margin for the true class:
    `dml_losses.functional.cos_face`.

    Use it like ArcFace; here, the margin doesn't depend on the angle.

    Args:
        num_classes, embedding_dim: C and D, both at least 1.
        scale, margin: see `cos_face`.

    Attributes:
        class_weights: (C, D), drawn uniformly from ±1/√D. Pass it to the optimizer.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.
    """

    def __init__(
        self, num_classes: int, embedding_dim: int, scale: float = 64.0, margin: float = 0.35
    ) -> None:
        super().__init__()
        self.class_weights = initial_class_weights(num_classes, embedding_dim)
        self.scale = check_positive("scale", scale)
        self.margin = check_non_negative("margin", margin)

    @takes_virtual
    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: ClassWeights | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C)."""
        weights = self.class_weights if class_weights is None else class_weights
        return cos_face(embeddings, labels, weights, scale=self.scale, margin=self.margin)

    sharded_forward = forward
    extra_repr = show("scale", "margin")

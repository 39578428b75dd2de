"""Sub-centre ArcFace as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_angle, check_positive, check_whole, show
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.classes import ClassWeights, takes_virtual
from dml_losses.functional.sub_center_arc_face import sub_center_arc_face


class SubCenterArcFace(torch.nn.Module):
    """ArcFace with multiple centres per class, using only the nearest:
    `functional.sub_center_arc_face`.

    Use it instead of ArcFace if labels are noisy: images of a different person can get a separate
    centre. The second training in the paper, without images far from the dominant centre of their
    class, is not part of the loss.

    Args:
        num_classes, embedding_dim: C and D, both at least 1.
        centers_per_class, scale, margin: see `sub_center_arc_face`.

    Attributes:
        class_weights: (C·K, D), drawn uniformly from ±1/√D. Pass it to the optimizer.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        centers_per_class: int = 3,
        scale: float = 64.0,
        margin: float = 0.5,
    ) -> None:
        super().__init__()
        self.centers_per_class = check_whole("centers_per_class", centers_per_class, 1)
        self.class_weights = initial_class_weights(
            num_classes, embedding_dim, centers_per_class=self.centers_per_class
        )
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
        return sub_center_arc_face(
            embeddings,
            labels,
            self.class_weights if class_weights is None else class_weights,
            centers_per_class=self.centers_per_class,
            scale=self.scale,
            margin=self.margin,
        )

    sharded_forward = forward
    extra_repr = show("centers_per_class", "scale", "margin")

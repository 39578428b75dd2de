"""SoftTriple as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_non_negative, check_positive, check_whole, show
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.soft_triple import soft_triple


class SoftTriple(torch.nn.Module):
    """A softmax over classes with multiple, softly assigned centres; superfluous centres are drawn
    together.

    For the equation, see `dml_losses.functional.soft_triple`. Use it for classes with multiple
    modes of appearance.

    Args:
        num_classes, embedding_dim: C and D, both at least 1.
        centers_per_class, scale, center_temperature, margin, merge_weight: see `soft_triple`.

    Attributes:
        class_weights: (C·K, D), normally distributed, with consecutive centres per class. Pass it
            to the optimizer.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        centers_per_class: int = 10,
        scale: float = 20.0,
        center_temperature: float = 0.1,
        margin: float = 0.01,
        merge_weight: float = 0.2,
    ) -> None:
        super().__init__()
        self.centers_per_class = check_whole("centers_per_class", centers_per_class, 1)
        self.class_weights = initial_class_weights(
            num_classes, embedding_dim, normal=True, centers_per_class=self.centers_per_class
        )
        self.scale = check_positive("scale", scale)
        self.center_temperature = check_positive("center_temperature", center_temperature)
        self.margin = check_non_negative("margin", margin)
        self.merge_weight = check_non_negative("merge_weight", merge_weight)

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C)."""
        return soft_triple(
            embeddings,
            labels,
            self.class_weights if class_weights is None else class_weights,
            centers_per_class=self.centers_per_class,
            scale=self.scale,
            center_temperature=self.center_temperature,
            margin=self.margin,
            merge_weight=self.merge_weight,
        )

    extra_repr = show("centers_per_class", "scale", "center_temperature", "margin", "merge_weight")

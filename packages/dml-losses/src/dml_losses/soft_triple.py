"""SoftTriple as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_non_negative, check_positive, check_whole
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.soft_triple import soft_triple


class SoftTriple(torch.nn.Module):
    """A softmax over classes with several centres each, softly assigned; superfluous centres are drawn together.

    The equation is in `dml_losses.functional.soft_triple`.

    Source: Qian et al. 2019, SoftTriple Loss: Deep Metric Learning Without Triplet Sampling.

    Args:
        num_classes: C ≥ 1.
        embedding_dim: D ≥ 1.
        centers_per_class: K ≥ 1; 10 in the paper.
        scale: λ > 0; 20 in the paper.
        center_temperature: γ > 0; 0.1 in the paper.
        margin: δ ≥ 0; 0.01 in the paper.
        merge_weight: τ ≥ 0; 0.2 in the paper.

    Attributes:
        class_weights: (C·K, D), drawn from a normal distribution; the centres of a class are consecutive. Give it to
            the optimizer.

    Raises:
        TypeError: unless the sizes and `centers_per_class` are whole numbers, and all other parameters numbers.
        ValueError: for a parameter outside its range.
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
        self, embeddings: torch.Tensor, labels: torch.Tensor, class_weights: torch.Tensor | None = None
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

    def extra_repr(self) -> str:
        """Return the parameters, for `repr`."""
        num_rows, embedding_dim = self.class_weights.shape
        return (
            f"{num_rows // self.centers_per_class}, {embedding_dim}, centers_per_class={self.centers_per_class}, "
            f"scale={self.scale}, center_temperature={self.center_temperature}, margin={self.margin}, "
            f"merge_weight={self.merge_weight}"
        )

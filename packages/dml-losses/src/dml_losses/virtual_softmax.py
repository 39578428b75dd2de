"""Virtual softmax as a module."""

from __future__ import annotations

import torch

from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.softmax import virtual_softmax


class VirtualSoftmax(torch.nn.Module):
    """Softmax classification with one more class, that lies where the embedding does.

    L = −mean_b log( e^{w_yᵀx} / (Σ_c e^{w_cᵀx} + e^{‖w_y‖‖x‖}) )

    Source: Chen et al. 2018, Virtual Class Enhanced Discriminative Embedding Learning.

    Args:
        num_classes: C ≥ 1.
        embedding_dim: D ≥ 1.

    Attributes:
        class_weights: (C, D), drawn uniformly from ±1/√D. Give it to the optimizer.

    Raises:
        TypeError: unless the sizes are whole numbers.
        ValueError: for a parameter outside its range.
    """

    def __init__(self, num_classes: int, embedding_dim: int) -> None:
        super().__init__()
        self.class_weights = initial_class_weights(num_classes, embedding_dim)

    def forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, class_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The scalar loss of embeddings (B, D) with labels (B,) in [0, C)."""
        weights = self.class_weights if class_weights is None else class_weights
        return virtual_softmax(embeddings, labels, weights)

    def extra_repr(self) -> str:
        """The parameters, for `repr`."""
        num_classes, embedding_dim = self.class_weights.shape
        return f"{num_classes}, {embedding_dim}"

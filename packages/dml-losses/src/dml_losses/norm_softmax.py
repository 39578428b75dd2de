"""Normalised softmax as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import positive
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.cosine_softmax import Virtual
from dml_losses.functional.norm_softmax import norm_softmax


class NormSoftmax(torch.nn.Module):
    """Softmax cross entropy of cosines with class weights, over a temperature and without a bias.

    L = −mean_b log( exp(x̂_bᵀp̂_y/σ) / Σ_c exp(x̂_bᵀp̂_c/σ) )

    Source: Making Classification Competitive for Deep Metric Learning, Eq. 5.

    Args:
        num_classes: C ≥ 1.
        embedding_dim: D ≥ 1.
        temperature: σ > 0; 0.05 in the paper. A plain attribute, so that a schedule can move it.

    Attributes:
        class_weights: (C, D), drawn uniformly from ±1/√D. Give it to the optimizer.

    Raises:
        TypeError: unless the sizes are whole numbers.
        ValueError: unless the sizes are at least 1 and the temperature is finite and positive.
    """

    def __init__(self, num_classes: int, embedding_dim: int, temperature: float = 0.05) -> None:
        super().__init__()
        self.class_weights = initial_class_weights(num_classes, embedding_dim)
        self.temperature = positive("temperature", temperature)

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
        virtual: Virtual | None = None,
    ) -> torch.Tensor:
        """The scalar loss of embeddings (B, D) with labels (B,) in [0, C); see `MemVir` for `virtual`."""
        weights = self.class_weights if class_weights is None else class_weights
        return norm_softmax(embeddings, labels, weights, temperature=self.temperature, virtual=virtual)

    def extra_repr(self) -> str:
        """The parameters, for `repr`."""
        num_classes, embedding_dim = self.class_weights.shape
        return f"{num_classes}, {embedding_dim}, temperature={self.temperature}"

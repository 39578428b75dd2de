"""Softmax classification as a module."""

from __future__ import annotations

import torch

from dml_core import ClassShard
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.softmax import softmax
from dml_losses.functional.sphere import common_precision
from dml_losses.ranks.sharded_softmax import sharded_softmax


class Softmax(torch.nn.Module):
    """Plain softmax classification, without normalisation and bias.

    L = −mean_b log( e^{w_yᵀx} / Σ_c e^{w_cᵀx} )

    Source: Learning with Memory-based Virtual Classes (MemVir), Eq. 2.

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
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C)."""
        weights = self.class_weights if class_weights is None else class_weights
        return softmax(embeddings, labels, weights)

    def sharded_forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, shard: ClassShard
    ) -> torch.Tensor:
        """Compute the same loss from this rank's classes; see `dml_core.ShardableLoss`."""
        features_BD, weights_LD = common_precision(embeddings, shard.class_weights)
        return sharded_softmax(features_BD, labels, weights_LD, shard.first, 1.0, normalised=False)

    def extra_repr(self) -> str:
        """Return the parameters, for `repr`."""
        num_classes, embedding_dim = self.class_weights.shape
        return f"{num_classes}, {embedding_dim}"

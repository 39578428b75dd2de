"""Softmax classification as a module."""

from __future__ import annotations

import torch

from dml_core import ClassShard
from dml_losses.arguments import show
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.softmax import softmax


class Softmax(torch.nn.Module):
    """Plain softmax classification, without normalisation and bias: `dml_losses.functional.softmax`.

    Use it as a baseline for the losses of cosines.

    Args:
        num_classes, embedding_dim: C and D, each at least 1.

    Attributes:
        class_weights: (C, D), drawn uniformly from ±1/√D. Give it to the optimizer.

    Raises:
        TypeError, ValueError: for a size of another type, or below 1.
    """

    def __init__(self, num_classes: int, embedding_dim: int) -> None:
        super().__init__()
        self.class_weights = initial_class_weights(num_classes, embedding_dim)

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: torch.Tensor | ClassShard | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C)."""
        return softmax(embeddings, labels, self.class_weights if class_weights is None else class_weights)

    sharded_forward = forward
    extra_repr = show()

"""Normalised softmax as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_positive, show
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.classes import ClassWeights, takes_virtual
from dml_losses.functional.norm_softmax import norm_softmax


class NormSoftmax(torch.nn.Module):
    """Softmax of cosines with class weights over a temperature:
    `dml_losses.functional.norm_softmax`.

    Use it first if items have class labels: it has only one parameter to tune. If there are too
    many classes, put `SampledClasses` around it, or around any other class loss.

    Args:
        num_classes, embedding_dim: C and D, both at least 1.
        temperature: see `norm_softmax`. A schedule can change this attribute.

    Attributes:
        class_weights: (C, D), drawn uniformly from ±1/√D. Pass it to the optimizer.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.

    Example:
        >>> import torch
        >>> from dml_losses import NormSoftmax
        >>> embeddings, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
        >>> loss = NormSoftmax(num_classes=2, embedding_dim=4, temperature=0.05)
        >>> loss(embeddings, labels).backward()
        >>> loss.class_weights.grad.shape
        torch.Size([2, 4])
    """

    def __init__(self, num_classes: int, embedding_dim: int, temperature: float = 0.05) -> None:
        super().__init__()
        self.class_weights = initial_class_weights(num_classes, embedding_dim)
        self.temperature = check_positive("temperature", temperature)

    @takes_virtual
    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: ClassWeights | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C)."""
        weights = self.class_weights if class_weights is None else class_weights
        return norm_softmax(embeddings, labels, weights, temperature=self.temperature)

    sharded_forward = forward
    extra_repr = show("temperature")

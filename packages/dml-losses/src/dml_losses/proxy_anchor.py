"""Proxy anchor as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_non_negative, check_positive, show
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.proxy_anchor import proxy_anchor


class ProxyAnchor(torch.nn.Module):
    """Each class's proxy compared with the batch: a log-sum-exp over positives, and a log-sum-exp
    over negatives.

    For the equation, see `dml_losses.functional.proxy_anchor`. Use it if batches have multiple
    images per class. Like the authors, this class draws proxies from a normal distribution
    (Kaiming, fan-out). The authors also give the proxies a hundred times the network's learning
    rate.

    Args:
        num_classes, embedding_dim: C and D, both at least 1.
        scale, margin: see `proxy_anchor`.

    Attributes:
        class_weights: (C, D), the proxies. Pass them to the optimizer.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.

    Example:
        >>> import torch
        >>> from dml_losses import ProxyAnchor
        >>> embeddings, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
        >>> loss = ProxyAnchor(num_classes=2, embedding_dim=4)
        >>> loss(embeddings, labels).shape
        torch.Size([])
    """

    def __init__(
        self, num_classes: int, embedding_dim: int, scale: float = 32.0, margin: float = 0.1
    ) -> None:
        super().__init__()
        self.class_weights = initial_class_weights(num_classes, embedding_dim, normal=True)
        self.scale = check_positive("scale", scale)
        self.margin = check_non_negative("margin", margin)

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C)."""
        weights = self.class_weights if class_weights is None else class_weights
        return proxy_anchor(embeddings, labels, weights, scale=self.scale, margin=self.margin)

    extra_repr = show("scale", "margin")

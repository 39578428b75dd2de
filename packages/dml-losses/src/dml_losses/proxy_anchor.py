"""Proxy anchor as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_non_negative, check_positive, show
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.proxy_anchor import proxy_anchor


class ProxyAnchor(torch.nn.Module):
    """Each class's proxy against the batch: one log-sum-exp over its positives, another over its negatives.

    The equation is in `dml_losses.functional.proxy_anchor`. Use it for batches with several images of each class.
    Its authors give the proxies a hundred times the network's learning rate, and draw them from a normal distribution
    (Kaiming, fan-out), as here.

    Args:
        num_classes, embedding_dim: C and D, each at least 1.
        scale, margin: as `proxy_anchor`.

    Attributes:
        class_weights: (C, D), the proxies. Give them to the optimizer.

    Raises:
        TypeError, ValueError: for a parameter of another type, or outside its range.

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
        self, embeddings: torch.Tensor, labels: torch.Tensor, class_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C)."""
        weights = self.class_weights if class_weights is None else class_weights
        return proxy_anchor(embeddings, labels, weights, scale=self.scale, margin=self.margin)

    extra_repr = show("scale", "margin")

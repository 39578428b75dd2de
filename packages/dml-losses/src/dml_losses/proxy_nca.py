"""Proxy-NCA as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_positive, show
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.classes import ClassWeights, takes_virtual
from dml_losses.functional.proxy_nca import proxy_nca


class ProxyNCA(torch.nn.Module):
    """A softmax, or NCA, of distances that draws each embedding nearer to its class's proxy than to
    other proxies.

    For the equation, see `dml_losses.functional.proxy_nca`. Use it to compare with the paper, or
    with MemVir's figures.

    Args:
        num_classes, embedding_dim: C and D, both at least 1.
        scale, positive_in_denominator: see `proxy_nca`; the scale is 1 in the paper, 12 in MemVir's
            code.

    Attributes:
        class_weights: (C, D), drawn from a normal distribution. Pass it to the optimizer.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        scale: float = 1.0,
        positive_in_denominator: bool = False,
    ) -> None:
        super().__init__()
        self.class_weights = initial_class_weights(num_classes, embedding_dim, normal=True)
        self.scale = check_positive("scale", scale)
        self.positive_in_denominator = positive_in_denominator

    @takes_virtual
    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: ClassWeights | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C)."""
        weights = self.class_weights if class_weights is None else class_weights
        positive = self.positive_in_denominator
        return proxy_nca(
            embeddings, labels, weights, scale=self.scale, positive_in_denominator=positive
        )

    sharded_forward = forward
    extra_repr = show("scale", "positive_in_denominator")

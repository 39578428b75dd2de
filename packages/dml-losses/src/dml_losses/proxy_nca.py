"""Proxy-NCA as a module."""

from __future__ import annotations

import torch

from dml_core import ClassShard
from dml_losses.arguments import check_positive
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.cosine_softmax import Virtual
from dml_losses.functional.proxy_nca import proxy_nca
from dml_losses.functional.sphere import common_precision, unit_rows
from dml_losses.ranks.sharded_softmax import sharded_softmax


class ProxyNCA(torch.nn.Module):
    """A softmax, or NCA, of distances that draws each embedding nearer to its class's proxy than to the others.

    L = −mean_b log( e^{−s·d(x̂,p̂_y)} / Σ_{c≠y} e^{−s·d(x̂,p̂_c)} ),  d the squared Euclidean distance

    Source: Movshovitz-Attias et al. 2017, No Fuss Distance Metric Learning using Proxies, with NCA.

    Args:
        num_classes: C ≥ 1.
        embedding_dim: D ≥ 1.
        scale: s > 0; 1 in the paper, 12 in MemVir's code.
        positive_in_denominator: add the true class to the sum, as MemVir's code does.

    Attributes:
        class_weights: (C, D), drawn from a normal distribution. Give it to the optimizer.

    Raises:
        TypeError: unless the sizes are whole numbers, and all other parameters numbers.
        ValueError: for a parameter outside its range.
    """

    def __init__(
        self, num_classes: int, embedding_dim: int, scale: float = 1.0, positive_in_denominator: bool = False
    ) -> None:
        super().__init__()
        self.class_weights = initial_class_weights(num_classes, embedding_dim, normal=True)
        self.scale = check_positive("scale", scale)
        self.positive_in_denominator = positive_in_denominator

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
        virtual: Virtual | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C); see `MemVir` for `virtual`."""
        weights = self.class_weights if class_weights is None else class_weights
        return proxy_nca(
            embeddings,
            labels,
            weights,
            scale=self.scale,
            positive_in_denominator=self.positive_in_denominator,
            virtual=virtual,
        )

    def sharded_forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, shard: ClassShard
    ) -> torch.Tensor:
        """Compute the same loss from this rank's classes; see `dml_core.ShardableLoss`."""
        features_BD, weights_LD = common_precision(embeddings, shard.class_weights)
        return sharded_softmax(
            unit_rows(features_BD),
            labels,
            weights_LD,
            shard.first,
            2 * self.scale,
            positive_in_denominator=self.positive_in_denominator,
        )

    def extra_repr(self) -> str:
        """Return the parameters, for `repr`."""
        num_classes, embedding_dim = self.class_weights.shape
        return (
            f"{num_classes}, {embedding_dim}, scale={self.scale}, "
            f"positive_in_denominator={self.positive_in_denominator}"
        )

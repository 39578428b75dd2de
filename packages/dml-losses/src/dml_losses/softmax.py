"""Softmax classification, plain and with a virtual class, as modules."""

from __future__ import annotations

import torch

from dml_core import ClassShard
from dml_losses.arguments import show
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.softmax import softmax, virtual_softmax
from dml_losses.functional.sphere import common_precision


class Softmax(torch.nn.Module):
    """Plain softmax classification, without normalisation and bias:
    `dml_losses.functional.softmax`.

    Use it as a baseline for the losses of cosines.

    Args:
        num_classes, embedding_dim: C and D, both at least 1.

    Attributes:
        class_weights: (C, D), drawn uniformly from ±1/√D. Pass it to the optimizer.

    Raises:
        TypeError, ValueError: if a size isn't an integer, or is below 1.
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
        return softmax(
            embeddings, labels, self.class_weights if class_weights is None else class_weights
        )

    sharded_forward = forward
    extra_repr = show()


class VirtualSoftmax(torch.nn.Module):
    """Softmax with an extra class in the direction of the embedding:
    `dml_losses.functional.virtual_softmax`.

    Use it instead of `Softmax`, with the same arguments: the extra class adds a margin without a
    parameter.
    """

    def __init__(self, num_classes: int, embedding_dim: int) -> None:
        super().__init__()
        self.class_weights = initial_class_weights(num_classes, embedding_dim)

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C)."""
        weights = self.class_weights if class_weights is None else class_weights
        return virtual_softmax(embeddings, labels, weights)

    def sharded_forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, shard: ClassShard
    ) -> torch.Tensor:
        """Compute the same loss from this rank's classes; see `dml_core.ShardableLoss`."""
        features_BD, weights_LD = common_precision(embeddings, shard.class_weights)
        with torch.autocast(features_BD.device.type, enabled=False):
            logits_BL = features_BD @ weights_LD.T
        norm_L = torch.linalg.vector_norm(weights_LD, dim=1)
        norm_B = shard.true_logits(norm_L.expand_as(logits_BL), labels)  # ‖w_y‖
        virtual_B = norm_B * torch.linalg.vector_norm(features_BD, dim=1)
        true_B, others_B = (
            shard.true_logits(logits_BL, labels),
            shard.other_logits(logits_BL, labels),
        )
        return (torch.stack((true_B, others_B, virtual_B)).logsumexp(dim=0) - true_B).mean()

    extra_repr = show()

"""One loss for each level of an embedding that joins several."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class LevelledLoss(nn.Module):
    """The weighted sum of the levels' losses, each of its own part of the embedding.

    ``Σ_l w_l · loss_l(x_l, labels)`` with ``x = [x_1, …, x_L]``.

    Source: Wang et al. 2021, Ranked List Loss for Deep Metric Learning, Sec. 4.1.3: one loss on each of the layers
    L, M and H. The paper names no weights; the authors' published settings weigh them alike.

    Args:
        levels: each level's loss, with weights and memory of its own.
        dims: each level's dimensions, in the order in which they are joined.
        weights: each level's weight, at least 0.

    Raises:
        ValueError: if the three aren't of one length.
    """

    def __init__(self, levels: Sequence[nn.Module], dims: Sequence[int], weights: Sequence[float]) -> None:
        super().__init__()
        if not len(levels) == len(dims) == len(weights):
            raise ValueError(
                f"{len(levels)} losses, {len(dims)} dims and {len(weights)} weights; expected as many of each"
            )
        self.levels = nn.ModuleList(levels)
        self.dims, self.weights = list(dims), list(weights)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The scalar loss of embeddings (B, sum of dims) with labels (B,)."""
        parts = torch.split(embeddings, self.dims, dim=1)
        losses = [
            weight * loss(part, labels)
            for weight, loss, part in zip(self.weights, self.levels, parts, strict=True)
        ]
        return torch.stack(losses).sum()

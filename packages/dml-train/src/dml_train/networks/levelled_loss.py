"""One loss per level, for an embedding that concatenates several levels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class LevelledLoss(nn.Module):
    """The weighted sum of one loss per level; each loss receives the level's part of the embedding.

    ``Σ_l w_l · loss_l(x_l, labels)`` with ``x = [x_1, …, x_L]``.

    Source: Wang et al. 2021, Ranked List Loss for Deep Metric Learning, Sec. 4.1.3: one loss on each of the layers
    L, M and H. The paper gives no weights; the authors' published settings weigh all levels equally.

    Args:
        levels: one loss per level; the losses must not share weights or memory.
        dims: number of dimensions per level, in the order of concatenation.
        weights: weight per level, at least 0.
    """

    def __init__(self, levels: Sequence[nn.Module], dims: Sequence[int], weights: Sequence[float]) -> None:
        super().__init__()
        if not len(levels) == len(dims) == len(weights):
            raise ValueError(
                f"{len(levels)} losses, {len(dims)} dims and {len(weights)} weights; expected the same number of each"
            )
        self.levels = nn.ModuleList(levels)
        self.dims, self.weights = list(dims), list(weights)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the scalar loss of embeddings (B, sum of dims) with labels (B,)."""
        parts = torch.split(embeddings, self.dims, dim=1)
        losses = [
            weight * loss(part, labels)
            for weight, loss, part in zip(self.weights, self.levels, parts, strict=True)
        ]
        return torch.stack(losses).sum()

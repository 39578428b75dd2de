"""The classes of this rank, as passed to a `ShardableLoss`.

Shapes: `B` batch, `C` classes, `L` classes of this rank, `D` dim, `K` weights (centres) per class.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import distributed

from dml_losses.exchange import all_reduce_, sum_over_ranks


@dataclass(slots=True)
class RankClasses:
    """The classes of this rank; see `dml_core.ClassShard` for the methods.

    Args:
        class_weights: (L·K, D), the weights of the classes in [`first`, `first` + L).
        first: the first class of this rank.
        num_classes: C, over all ranks.
    """

    class_weights: torch.Tensor
    first: int
    num_classes: int

    def true_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Fetch z_y, the true logit per row; the gradients of all ranks go to the rank that has the
        logit.
        """
        return sum_over_ranks(logits.where(self._is_true(logits, labels), 0).sum(dim=1))

    def other_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Compute log Σ_{c≠y} exp(z_c) over all ranks' classes; −∞, with a zero gradient, if there
        are none.
        """
        others_BL = logits.masked_fill(self._is_true(logits, labels), -torch.inf)
        highest_B = logits.new_full((len(logits),), -torch.inf)
        if logits.shape[1]:
            highest_B = others_BL.detach().amax(dim=1)
        highest_B = all_reduce_(highest_B, distributed.ReduceOp.MAX)
        some_B = highest_B > -torch.inf
        highest_B = highest_B.where(some_B, 0)
        total_B = sum_over_ranks((others_BL - highest_B[:, None]).exp().sum(dim=1))
        # The inner `where` stops log's infinite gradient at 0 in rows that have no other class.
        return torch.where(some_B, highest_B + total_B.where(some_B, 1).log(), -torch.inf)

    def _is_true(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mark the rows' true classes, if this rank has them, (B, L)."""
        own_L = torch.arange(self.first, self.first + logits.shape[1], device=labels.device)
        return labels[:, None] == own_L

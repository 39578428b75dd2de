"""A rank's classes as a loss sees them.

Shapes: `B` batch, `C` classes, `L` classes of this rank, `D` dim, `O` rows whose true class is this rank's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import distributed

from dml_losses.functional.over_ranks import reduced_, summed
from dml_losses.functional.sharded_softmax import owned


@dataclass(slots=True)
class RankClasses:
    """The classes of this rank; a `dml_core.components.ClassShard`.

    Args:
        class_weights: (L, D), the weights of the classes `first` to `first` + L.
        first: the first of them.
        num_classes: C, of all ranks.
    """

    class_weights: torch.Tensor
    first: int
    num_classes: int

    def true_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """z_y, the logit of each row's true class, which one rank has.

        Args:
            logits: (B, L), any floating dtype.
            labels: (B,), integer in [0, C).

        Returns:
            (B,), the same on every rank. What is back-propagated through it on any rank reaches the rank that has it.
        """
        own_O, column_O = owned(labels, self.first, logits.shape[1])
        true_B = logits.new_zeros(len(logits)).index_put((own_O,), logits[own_O, column_O])
        return summed(true_B)

    def other_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """log Σ_{c≠y} exp(z_c), over the classes of all ranks.

        Args:
            logits: (B, L), any floating dtype.
            labels: (B,), integer in [0, C).

        Returns:
            (B,), the same on every rank; −∞, with a zero gradient, where there is no other class.
        """
        own_O, column_O = owned(labels, self.first, logits.shape[1])
        others_BL = logits.index_put((own_O, column_O), logits.new_tensor(-torch.inf))
        highest_B = logits.new_full((len(logits),), -torch.inf)
        if logits.shape[1]:
            highest_B = others_BL.detach().amax(dim=1)
        highest_B = reduced_(highest_B, distributed.ReduceOp.MAX)
        some_B = highest_B > -torch.inf
        highest_B = highest_B.where(some_B, 0)
        total_B = summed((others_BL - highest_B[:, None]).exp().sum(dim=1))
        # The inner choice keeps log's gradient at 0, which is infinite, from the rows that have no other class.
        return torch.where(some_B, highest_B + total_B.where(some_B, 1).log(), -torch.inf)

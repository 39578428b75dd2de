"""Contrastive loss as a module."""

from __future__ import annotations

from dml_losses.arguments import check_positive
from dml_losses.functional.contrastive import contrastive
from dml_losses.pair_module import PairModule


class Contrastive(PairModule):
    """Half the squared distance of positives, plus half the squared shortfall of negatives within a
    margin.

    Use it as a baseline, or if a distance must have a meaning: a threshold below the margin
    separates classes. For the equation, see `dml_losses.functional.contrastive`.

    Args:
        margin: see `contrastive`.

    Raises:
        TypeError, ValueError: if the margin isn't a number, or isn't finite and above 0.
    """

    _function = staticmethod(contrastive)
    _options = ("margin",)

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = check_positive("margin", margin)

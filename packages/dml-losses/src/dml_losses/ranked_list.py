"""Ranked list loss as a module."""

from __future__ import annotations

from typing import get_args

from dml_losses.arguments import (
    check_choice,
    check_finite,
    check_fraction,
    check_non_negative,
    check_positive,
)
from dml_losses.functional.ranked_list import QueryWeights, ranked_list
from dml_losses.pair_module import PairModule


class RankedListLoss(PairModule):
    """A loss of negatives inside a boundary and positives outside a hypersphere, weighted by the
    violation.

    Use this loss to preserve the spread of classes: positives that are inside the hypersphere
    aren't drawn nearer. For the equations, see `dml_losses.functional.ranked_list`.

    Args:
        margin, alpha, negative_temperature, positive_temperature, balance, query_weights: see
            `ranked_list`. For the dynamic weighting of Eq. 15, use a linear schedule of
            `negative_temperature`.

    Raises:
        TypeError: if a parameter isn't a number.
        ValueError: if a parameter is out of range, the margin exceeds α, or `query_weights` is
            unknown.
    """

    _function = staticmethod(ranked_list)
    _options = (
        "margin",
        "alpha",
        "negative_temperature",
        "positive_temperature",
        "balance",
        "query_weights",
    )

    def __init__(
        self,
        margin: float = 0.4,
        alpha: float = 1.2,
        negative_temperature: float = 10.0,
        positive_temperature: float = 0.0,
        balance: float = 0.5,
        query_weights: QueryWeights = "equal",
    ) -> None:
        super().__init__()
        self.margin = check_non_negative("margin", margin)
        self.alpha = check_positive("alpha", alpha)
        self.negative_temperature = check_finite("negative_temperature", negative_temperature)
        self.positive_temperature = check_finite("positive_temperature", positive_temperature)
        self.balance = check_fraction("balance", balance)
        check_choice("query_weights", query_weights, get_args(QueryWeights))
        self.query_weights: QueryWeights = query_weights
        if self.margin > self.alpha:
            raise ValueError(
                f"margin is {margin}; expected at most alpha, {alpha}: alpha - margin is the "
                "hypersphere's diameter"
            )

    @classmethod
    def simpler(
        cls,
        margin: float = 0.4,
        negative_temperature: float = 10.0,
        query_weights: QueryWeights = "equal",
    ) -> RankedListLoss:
        """Make RLL-Simpler (section 3.4): boundaries 1 ± m/2 around the distance 1, and T_p = 0.

        Raises:
            TypeError: if a parameter isn't a number.
            ValueError: if the margin is outside [0, 2], the temperature isn't finite, or
                `query_weights` is unknown.
        """
        alpha = 1 + check_non_negative("margin", margin) / 2
        return cls(margin, alpha, negative_temperature, query_weights=query_weights)

    @property
    def hypersphere_diameter(self) -> float:
        """The diameter α − m of the hypersphere, inside which positives are not violations (section
        3.3).
        """
        return self.alpha - self.margin

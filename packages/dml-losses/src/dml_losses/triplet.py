"""Triplet loss as a module."""

from __future__ import annotations

from typing import Literal, get_args

from dml_losses.arguments import check_choice, check_margin
from dml_losses.functional.triplet import Triplets, triplet
from dml_losses.pair_module import PairModule


class Triplet(PairModule):
    """A loss of triplets in which a positive should be nearer to the anchor than a negative, by a
    margin.

    Use it beside a class loss, as the re-identification baseline does, or as a baseline. For the
    equations, see `dml_losses.functional.triplet`.

    Args:
        triplets, margin: see `triplet`. A schedule can change the margin.

    Raises:
        TypeError: if the margin is neither "soft" nor a number.
        ValueError: if the margin isn't finite or is below 0, or `triplets` is unknown.
    """

    _function = staticmethod(triplet)
    _options = ("triplets", "margin")

    def __init__(
        self, triplets: Triplets = "batch-hard", margin: float | Literal["soft"] = 0.2
    ) -> None:
        super().__init__()
        check_choice("triplets", triplets, get_args(Triplets))
        self.triplets: Triplets = triplets
        self.margin = check_margin(margin)

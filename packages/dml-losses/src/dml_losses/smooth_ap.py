"""Smooth-AP as a module."""

from __future__ import annotations

from dml_losses.arguments import check_positive
from dml_losses.functional.smooth_ap import smooth_ap
from dml_losses.pair_module import PairModule


class SmoothAP(PairModule):
    """One minus the mean average precision, with sigmoids instead of steps:
    `dml_losses.functional.smooth_ap`.

    Use it to train the metric that you report, with large batches (see `training.micro_batch`).

    Args:
        temperature: see `smooth_ap`.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.
    """

    _function = staticmethod(smooth_ap)
    _options = ("temperature",)

    def __init__(self, temperature: float = 0.01) -> None:
        super().__init__()
        self.temperature = check_positive("temperature", temperature)

"""SupAP as a module."""

from __future__ import annotations

from dml_losses.arguments import check_non_negative, check_positive
from dml_losses.functional.sup_ap import sup_ap
from dml_losses.pair_module import PairModule


class SupAP(PairModule):
    """One minus a lower bound of the mean average precision: `dml_losses.functional.sup_ap`.

    Use it instead of `SmoothAP`, whose gradient vanishes if ranks are very wrong.

    Args:
        temperature, slope, saturation: see `sup_ap`.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.
    """

    _function = staticmethod(sup_ap)
    _options = ("temperature", "slope", "saturation")

    def __init__(
        self, temperature: float = 0.01, slope: float = 100.0, saturation: float = 0.05
    ) -> None:
        super().__init__()
        self.temperature = check_positive("temperature", temperature)
        self.slope = check_positive("slope", slope)
        self.saturation = check_non_negative("saturation", saturation)

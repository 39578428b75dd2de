"""SupCon as a module."""

from __future__ import annotations

from dml_losses.arguments import check_positive
from dml_losses.functional.sup_con import sup_con
from dml_losses.pair_module import PairModule


class SupCon(PairModule):
    """Cross entropy of a softmax over all rows, at an anchor's positives:
    `dml_losses.functional.sup_con`.

    Use it with large batches, since each anchor is compared with all rows.

    Args:
        temperature: see `sup_con`.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.
    """

    _function = staticmethod(sup_con)
    _options = ("temperature",)

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = check_positive("temperature", temperature)

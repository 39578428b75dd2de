"""The best evaluation so far, and early stopping."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dml_core import DmlError, nearest


class Best:
    """The best validation so far, and for how many since then there was none better.

    Args:
        metric: a name among the evaluation's figures, ``"map_at_r"`` or ``"recall/1"``; more is better.
        patience: after so many validations without a better one it is enough; 0: never.
    """

    def __init__(self, metric: str, patience: int) -> None:
        self.metric, self.patience = metric, patience
        self.step, self.value, self.since = 0, -np.inf, 0

    @property
    def exhausted(self) -> bool:
        """Whether training on is given up."""
        return 0 < self.patience <= self.since

    def see(self, step: int, figures: Mapping[str, float]) -> bool:
        """Note a validation; whether it is the best so far.

        Raises:
            DmlError: if the metric isn't among the figures.
        """
        if self.metric not in figures:
            raise DmlError(
                f"validation.metric is {self.metric!r}{nearest(self.metric, figures)} "
                f"the evaluator measured: {', '.join(figures)}"
            )
        if figures[self.metric] <= self.value:
            self.since += 1
            return False
        self.step, self.value, self.since = step, figures[self.metric], 0
        return True

    def state_dict(self) -> dict[str, float]:
        """What a resumed run needs."""
        return {"step": self.step, "value": float(self.value), "since": self.since}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from there."""
        self.step, self.value, self.since = int(state["step"]), state["value"], int(state["since"])

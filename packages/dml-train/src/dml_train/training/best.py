"""The best evaluation so far, and early stopping."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dml_core import DmlError, nearest


class Best:
    """The best evaluation so far, and the number of evaluations since then.

    Args:
        metric: name of the metric to maximise, for example ``"map@r"`` or ``"recall@1"``.
        patience: stop after this number of evaluations that don't improve the metric; 0 disables.
    """

    def __init__(self, metric: str, patience: int) -> None:
        self.metric, self.patience = metric, patience
        self.step, self.value, self.since = 0, -np.inf, 0

    @property
    def exhausted(self) -> bool:
        """Whether the patience is exhausted, so that training should be stopped early."""
        return 0 < self.patience <= self.since

    def update(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Record an evaluation, and return whether it is the best so far; raise a `DmlError` if it
        lacks `metric`.
        """
        if self.metric not in metrics:
            raise DmlError(
                f"validation.metric is {self.metric!r}{nearest(self.metric, metrics)} "
                f"the evaluator measured: {', '.join(metrics)}"
            )
        if metrics[self.metric] <= self.value:
            self.since += 1
            return False
        self.step, self.value, self.since = step, metrics[self.metric], 0
        return True

    def state_dict(self) -> dict[str, float]:
        """Return the state that a resumed run needs."""
        return {"step": self.step, "value": float(self.value), "since": self.since}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the state that `state_dict` returned."""
        self.step, self.value, self.since = int(state["step"]), state["value"], int(state["since"])

"""Weights & Biases."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from dml_train.extras import extra
from dml_train.run_folder import RunFolder
from dml_train.training.trackers.identity import PROJECT, flatten_settings, identify, refusals_of

STEP = "step"


class WeightsAndBiases:
    """A run of Weights & Biases, with its files in ``wandb/`` of the run's folder.

    Args:
        directory: the run's folder.
        recipe: becomes the run's config.
        project: the project's name.
        run_name: the run's display name; default: that of the folder.
        mode: ``"offline"`` writes files alone, which ``wandb sync`` uploads; ``"online"`` needs an account.
    """

    def __init__(
        self,
        directory: Path,
        recipe: Mapping[str, Any],
        project: str = PROJECT,
        run_name: str | None = None,
        mode: Literal["offline", "online"] = "offline",
    ) -> None:
        self._folder = RunFolder(directory)
        if mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        with extra("wandb", "the logger 'wandb'"):
            import wandb

        identity = identify(directory, "wandb", lambda: {"id": uuid.uuid4().hex[:12]})
        with refusals_of("wandb", self._folder.tracker("wandb")):
            self._run = wandb.init(
                project=project,
                name=run_name or directory.resolve().name,
                id=identity["id"],
                resume="allow",
                mode=mode,
                dir=str(directory),
                reinit="create_new",  # leaves other runs of this process alone
                settings=wandb.Settings(
                    console="off",
                    silent=True,
                    save_code=False,
                    disable_git=True,
                    x_transaction_log_flush_interval=1.0,  # seconds; by default a killed run loses the last 15
                ),
            )
            self._run.config.update(flatten_settings(recipe), allow_val_change=True)
            # A step of its own: W&B's never decreases, and would drop the steps that a resumed run repeats.
            self._run.define_metric("*", step_metric=STEP)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        self._run.log({**values, STEP: step})

    def close(self) -> None:
        """Flush the values, and mark the run as failed unless it is complete."""
        self._run.finish(exit_code=0 if self._folder.is_finished else 1)

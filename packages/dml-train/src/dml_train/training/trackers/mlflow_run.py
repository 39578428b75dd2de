"""MLflow."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dml_train.extras import extra
from dml_train.run_folder import RunFolder
from dml_train.training.trackers.identity import PROJECT, flatten_settings, identify, refusals_of

_BATCH = 500  # values of one request; MLflow takes at most 1,000
_INTERVAL = 1.0  # seconds between two requests: each takes milliseconds, and a step may take less
_LONGEST = 6000  # characters of a parameter that MLflow stores


class MlflowRun:
    """A run of MLflow.

    Args:
        directory: the run's folder.
        start_step: steps done when logging starts.
        recipe: becomes the run's parameters. MLflow's never change: a setting that a forced resume changes is a tag
            with the step, ``optimizer.lr from step 500``.
        project: the name of the experiment.
        run_name: the run's name; default: that of the folder.
        tracking_uri: of the store; default: the environment's ``MLFLOW_TRACKING_URI``, or else the file
            ``mlflow.db`` in the current folder, which ``mlflow ui`` reads. A resumed run keeps its store.
    """

    def __init__(
        self,
        directory: Path,
        start_step: int,
        recipe: Mapping[str, Any],
        project: str = PROJECT,
        run_name: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        self._folder = RunFolder(directory)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        with extra("mlflow", "the logger 'mlflow'"):
            import alembic  # noqa: F401  # of the local store, which mlflow-skinny installs without
            import sqlalchemy  # noqa: F401
            from mlflow.entities import Metric, Param, RunTag
            from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._values: list[Any] = []
        self._sent = time.monotonic()

        def create() -> dict[str, str]:
            local = f"sqlite:///{Path('mlflow.db').resolve().as_posix()}"
            uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or local
            client = MlflowClient(tracking_uri=uri)
            found = client.get_experiment_by_name(project)
            experiment = client.create_experiment(project) if found is None else found.experiment_id
            run = client.create_run(experiment, run_name=run_name or directory.resolve().name)
            return {"id": run.info.run_id, "tracking_uri": uri}

        with refusals_of("mlflow", self._folder.tracker("mlflow")):
            identity = identify(directory, "mlflow", create)
            self._id, self._client = identity["id"], MlflowClient(tracking_uri=identity["tracking_uri"])
            known = self._client.get_run(self._id).data.params
            settings = {key: str(value)[:_LONGEST] for key, value in flatten_settings(recipe).items()}
            self._client.log_batch(
                self._id,
                params=[Param(key, value) for key, value in settings.items() if key not in known],
                tags=[
                    RunTag(f"{key} from step {start_step}", value)
                    for key, value in settings.items()
                    if known.get(key, value) != value
                ],
            )
            self._client.update_run(self._id, status="RUNNING")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each curve; they are sent once a second."""
        now = int(time.time() * 1000)
        # MLflow's names of metrics have no other characters.
        names = {name: re.sub(r"[^\w\-. :/]", "_", name) for name in values}
        self._values += [self._metric(names[name], value, now, step) for name, value in values.items()]
        if len(self._values) >= _BATCH or time.monotonic() - self._sent >= _INTERVAL:
            self._send()

    def close(self) -> None:
        """Send the remaining values, and mark the run as finished, or as killed unless it is complete."""
        self._send()
        complete = self._folder.is_finished
        self._client.set_terminated(self._id, "FINISHED" if complete else "KILLED")

    def _send(self) -> None:
        values, self._values = self._values, []
        for start in range(0, len(values), _BATCH):
            self._client.log_batch(self._id, metrics=values[start : start + _BATCH])
        self._sent = time.monotonic()

"""Loggers that send a run to an experiment tracker: Weights & Biases, MLflow, Trackio.

Loggers send the recipe as the run's settings, and values by step. A tracker shows the last value of
a name as the run's result, so the evaluation of the test split is logged last. The run's folder
stores the run's ID in the tracker, so that a resumed run continues its entry; it will log the steps
since the last checkpoint again, with the same values. Trackers write in the background, so when a
run is killed, the last seconds may be missing.

All loggers have these arguments: `directory` is the run's folder, `recipe` becomes the run's
settings, `project` is the tracker's project or experiment, and `run_name` is the name to show
there, by default the folder's name.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Literal

from dml_core import DmlError
from dml_train.extras import extra
from dml_train.files import read_json, write_json
from dml_train.run_folder import RunFolder, Tracker

PROJECT = "dml"
STEP = "step"
_BATCH = 500  # values per request to MLflow, which accepts up to 1,000
_INTERVAL = 1.0  # seconds between requests, since a request can take longer than a step
_LONGEST = 6000  # characters of a parameter that MLflow stores


class WeightsAndBiases:
    """A run of Weights & Biases, with files in ``wandb/`` in the run's folder.

    Args:
        directory, recipe, project, run_name: see the module.
        mode: ``"offline"`` only writes files, which ``wandb sync`` uploads; ``"online"`` needs an
            account.
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

        with _starting("wandb", directory, lambda: {"id": uuid.uuid4().hex[:12]}) as identity:
            self._run = wandb.init(
                project=project,
                name=run_name or directory.resolve().name,
                id=identity["id"],
                resume="allow",
                mode=mode,
                dir=str(directory),
                reinit="create_new",  # doesn't end other runs of this process
                settings=wandb.Settings(
                    console="off",
                    silent=True,
                    save_code=False,
                    disable_git=True,
                    # by default, a killed run loses the last 15 seconds
                    x_transaction_log_flush_interval=1.0,
                ),
            )
            self._run.config.update(flatten_settings(recipe), allow_val_change=True)
            # Log the step as a value: W&B's step can't decrease, so W&B would drop steps that a
            # resumed run repeats.
            self._run.define_metric("*", step_metric=STEP)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point per curve."""
        self._run.log({**values, STEP: step})

    def close(self) -> None:
        """Flush the values, and mark the run as failed unless it is complete."""
        self._run.finish(exit_code=0 if self._folder.is_finished else 1)


class MlflowRun:
    """A run of MLflow.

    MLflow's parameters can't be changed. If a forced resume changes a setting, the new value is
    logged as a tag with the step, for example ``optimizer.lr from step 500``.

    Args:
        directory, recipe, project, run_name: see the module.
        start_step: steps done when logging starts.
        tracking_uri: URI of the store; default: the environment variable ``MLFLOW_TRACKING_URI`` if
            set, otherwise the file ``mlflow.db`` in the current folder, which ``mlflow ui`` reads.
            A resumed run keeps the store.
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
            import alembic  # noqa: F401  # the local store needs it, but mlflow-skinny doesn't install it
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

        with _starting("mlflow", directory, create) as identity:
            self._id, self._client = (
                identity["id"],
                MlflowClient(tracking_uri=identity["tracking_uri"]),
            )
            known = self._client.get_run(self._id).data.params
            settings = {
                key: str(value)[:_LONGEST] for key, value in flatten_settings(recipe).items()
            }
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
        """Add a point per curve; points are sent once per second."""
        now = int(time.time() * 1000)
        # MLflow rejects other characters in names of metrics.
        names = {name: re.sub(r"[^\w\-. :/]", "_", name) for name in values}
        self._values += [
            self._metric(names[name], value, now, step) for name, value in values.items()
        ]
        if len(self._values) >= _BATCH or time.monotonic() - self._sent >= _INTERVAL:
            self._send()

    def close(self) -> None:
        """Send the remaining values, and mark the run as finished if it is complete, otherwise as
        killed.
        """
        self._send()
        self._client.set_terminated(self._id, "FINISHED" if self._folder.is_finished else "KILLED")

    def _send(self) -> None:
        values, self._values = self._values, []
        for start in range(0, len(values), _BATCH):
            self._client.log_batch(self._id, metrics=values[start : start + _BATCH])
        self._sent = time.monotonic()


class TrackioRun:
    """A run of Trackio, in the local database (``TRACKIO_DIR``) unless Trackio's environment
    variables name a server.

    Trackio resumes by name, so if the name is already used in the project, a number is added.
    """

    def __init__(
        self,
        directory: Path,
        recipe: Mapping[str, Any],
        project: str = PROJECT,
        run_name: str | None = None,
    ) -> None:
        with extra("trackio", "the logger 'trackio'"):
            import trackio

        def create() -> dict[str, str]:
            try:
                known = {run.name for run in trackio.Api().runs(project)}
            except ValueError:  # the project doesn't exist yet
                known = set()
            name = base = run_name or directory.resolve().name
            number = 1
            while name in known:
                number += 1
                name = f"{base}-{number}"
            return {"name": name, "project": project}

        self._trackio = trackio
        # Trackio prints to the standard output, which is reserved for results.
        with redirect_stdout(sys.stderr), _starting("trackio", directory, create) as identity:
            self._run = trackio.init(
                project=identity["project"],
                name=identity["name"],
                resume="allow",
                config=flatten_settings(recipe),
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point per curve."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Flush the values."""
        with redirect_stdout(sys.stderr):
            # not `self._run.finish`, which Trackio would call again when the program ends
            self._trackio.finish()


@contextmanager
def _starting(
    tracker: Tracker, directory: Path, create: Callable[[], dict[str, str]]
) -> Iterator[dict[str, str]]:
    """Yield the run's identity in a tracker, which is read from the run's folder, or created and
    saved.

    `create` makes an identity, such as ``{"id": "4f7a", "project": "dml"}``. If any error occurs,
    here or in the context, raise a `DmlError` that names the logger.
    """
    path = RunFolder(directory).tracker(tracker)
    try:
        if not path.is_file():
            write_json(path, create())
        yield read_json(path)
    except DmlError:
        raise
    except Exception as error:
        raise DmlError(
            f"the logger {tracker!r} can't start: {type(error).__name__}: {error}. Correct the "
            f"options in logging.loggers, or remove {path} to log to a new run"
        ) from error


def flatten_settings(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Map the paths of settings in a recipe, such as ``loss.temperature``, to values; a list
    becomes JSON.
    """
    flat: dict[str, Any] = {}
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            flat |= flatten_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list) else value
    return flat

"""Experiment trackers, tested with the real packages if these are installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from train_support import tracked_run
from train_support.tiny_world import make_document

from dml_core import DmlError
from dml_core.testing import LoggerContract
from dml_train.files import write_json
from dml_train.run_folder import RunFolder
from dml_train.training.trackers import MlflowRun, TrackioRun, WeightsAndBiases, flatten_settings

NEEDS = {"wandb": ["wandb"], "mlflow": ["mlflow", "sqlalchemy", "alembic"], "trackio": ["trackio"]}
INSTALLED = [name for name, packages in NEEDS.items() if all(map(find_spec, packages))]
# These packages use deprecated functions of dependencies.
pytestmark = pytest.mark.filterwarnings("default")


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        name not in INSTALLED, reason=f"{name} isn't installed: dml-train[{name}]"
    )


TRACKERS = [pytest.param(name, marks=needs(name)) for name in NEEDS]


@pytest.fixture(scope="module", autouse=True)
def _a_home(tmp_path_factory: pytest.TempPathFactory):
    """Give the trackers a temporary home folder; Trackio reads the variable when it is imported."""
    home = tmp_path_factory.mktemp("home")
    names = ("HOME", "TRACKIO_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setenv(name, str(home / name))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, dict[str, Any]]:
    """Return a run that was killed and resumed, and the contents of the trackers."""
    folder = tmp_path_factory.mktemp("tracked") / "a run"
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="default"):
        patch.chdir(folder.parent)
        killed = subprocess.run(
            [sys.executable, tracked_run.__file__, str(folder), *INSTALLED],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert not killed.stdout
        tracked_run.train_tracked(folder, INSTALLED, kill=False)
        return RunFolder(folder), {name: tracked_run.READERS[name](folder) for name in INSTALLED}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACKERS)
def test_a_killed_run_continues_as_the_same_run_with_its_recipe_and_every_step(resumed, name):
    folder, held = resumed[0], resumed[1][name]
    assert len(held["runs"]) == 1
    assert held["complete"]
    expected = {
        "training.steps": "12",
        "loss.name": "tiny",
        "optimizer.lr": "0.01",
        "optimizer.betas": "[0.9, 0.999]",
    }
    assert {key: str(held["settings"][key]) for key in expected} == expected

    losses: dict[int, set[float]] = {}
    for step, key, value in held["points"]:
        if key == "loss":
            losses.setdefault(step, set()).add(value)
    assert sorted(losses) == list(range(1, 13))
    assert {len(values) for values in losses.values()} == {
        1
    }  # a repeated step must not change its loss

    logged = (
        "evaluation/recall_1" if name == "mlflow" else "evaluation/recall@1"
    )  # names must not contain @
    metrics = [value for step, key, value in held["points"] if key == logged]
    assert metrics[-1] == folder.read_evaluation()["recall@1"]


@needs("mlflow")
def test_mlflow_keeps_parameters_and_tags_those_that_a_forced_resume_changes(tmp_path):
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'store.db'}"
    for start, rate in ((0, 0.01), (4, 0.02)):
        MlflowRun(tmp_path, start, {"optimizer": {"lr": rate}}, tracking_uri=uri).close()
    client = MlflowClient(tracking_uri=uri)
    run = client.get_run(RunFolder(tmp_path).tracker("mlflow").read_text().split('"')[3])
    assert run.data.params == {"optimizer.lr": "0.01"}
    assert run.data.tags["optimizer.lr from step 4"] == "0.02"
    assert run.info.status == "KILLED"


@needs("mlflow")
def test_mlflow_names_a_run_that_its_store_lacks(tmp_path):
    uri = f"sqlite:///{tmp_path / 'store.db'}"
    write_json(RunFolder(tmp_path).tracker("mlflow"), {"id": "0" * 32, "tracking_uri": uri})
    message = r"'mlflow' can't start: .*not found.*remove .*mlflow.json to log to a new run"
    with pytest.raises(DmlError, match=message):
        MlflowRun(tmp_path, 0, {}, tracking_uri=uri)


@needs("trackio")
def test_trackio_numbers_a_name_that_the_project_has(tmp_path):
    from trackio.sqlite_storage import SQLiteStorage

    for place in "abaa":
        (tmp_path / place).mkdir(exist_ok=True)
        logger = TrackioRun(tmp_path / place, {}, project="names", run_name="mine")
        logger.log(1, {"loss": 1.0})
        logger.close()
    assert sorted(SQLiteStorage.get_runs("names")) == ["mine", "mine-2"]
    assert Counter(len(SQLiteStorage.get_logs("names", name)) for name in ("mine", "mine-2")) == {
        3: 1,
        1: 1,
    }


def test_settings_are_named_by_their_paths():
    recipe = make_document(
        schedule={"optimizer.lr": {"kind": "cosine"}}, optimizer={"betas": [0.9, 0.99]}
    )
    settings = flatten_settings(recipe)
    assert settings["schedule.optimizer.lr.kind"] == "cosine"
    assert settings["optimizer.betas"] == "[0.9, 0.99]"
    assert settings["training.steps"] == 12


@needs("wandb")
class TestWeightsAndBiases(LoggerContract):
    def make_logger(self, directory: Path, start_step: int) -> WeightsAndBiases:
        return WeightsAndBiases(directory, {"training": {"steps": 3}})


@needs("mlflow")
class TestMlflow(LoggerContract):
    @pytest.fixture(autouse=True)
    def _store(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.uri = f"sqlite:///{tmp_path_factory.getbasetemp() / 'contract.db'}"

    def make_logger(self, directory: Path, start_step: int) -> MlflowRun:
        return MlflowRun(directory, start_step, {"training": {"steps": 3}}, tracking_uri=self.uri)


@needs("trackio")
class TestTrackio(LoggerContract):
    def make_logger(self, directory: Path, start_step: int) -> TrackioRun:
        return TrackioRun(directory, {"training": {"steps": 3}})

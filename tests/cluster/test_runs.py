"""Six short runs on a cluster that loses a machine: the bits of one process, and no other run loses anything."""

from __future__ import annotations

import threading
import time
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from dml_core import DmlError, registry
from dml_train.cluster.ray_cluster import RayCluster, RayExecutor
from dml_train.cluster.workers import UnfitWorker
from dml_train.recipe.loading import load_recipe
from dml_train.studies.runs import Job, run_all

ray = pytest.importorskip("ray", reason="Ray isn't installed, or has no wheel for this platform")

pytestmark = pytest.mark.xdist_group("ray cluster")

SETTINGS = [
    "dataset.max_classes=40", "sampler.classes_per_batch=8", "training.steps=120", "logging.loggers=[]",
    "checkpoints.every=10", 'checkpoints.unit="step"',
]  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def jobs(folder: Path) -> list[Job]:
    recipes = [load_recipe("glyphs-tiny", [*SETTINGS, f"training.seed={s}"], registry()) for s in range(6)]
    return [Job(f"seed {r.training.seed}", r, folder / str(r.training.seed)) for r in recipes]


def result_files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "seconds.json"
    }


def test_runs_outlive_their_machine(ray_nodes, tmp_path):
    shown = Console(file=StringIO(), width=300)
    cluster = RayCluster(ray_nodes.address)

    def kill():
        while len({path.parents[1] for path in tmp_path.glob("there/*/checkpoints/*")}) < 3:
            time.sleep(0.05)
        ray_nodes.kill_worker()  # each machine is training now

    killer = threading.Thread(target=kill)
    with cluster.connect(["dml-train"], tmp_path / "there"), RayExecutor(cluster) as executor:
        killer.start()
        outcomes = run_all(jobs(tmp_path / "there"), executor=executor, registry=registry(), console=shown)
    killer.join()
    assert [outcome.fault for outcome in outcomes] == [None] * 6
    said = shown.file.getvalue().splitlines()
    assert len(said) == 1
    assert "it resumes elsewhere" in said[0]
    run_all(jobs(tmp_path / "here"), registry=registry(), console=Console(quiet=True))
    assert result_files(tmp_path / "there") == result_files(tmp_path / "here")


def test_unfit_machines_and_clusters_are_named_before_work(ray_nodes, tmp_path, monkeypatch):
    cluster = RayCluster(ray_nodes.address)
    ray.init(address=ray_nodes.address, log_to_driver=False, logging_level="ERROR")
    with pytest.raises(
        DmlError, match=r"no machine of the cluster has the 64 cores and 0 GPUs of a worker; the largest"
    ):
        RayCluster(ray_nodes.address, cpus=64).count_workers()
    from dml_train.cluster import workers

    look = workers.look
    monkeypatch.setattr(
        workers, "look", lambda names, *rest: ({**look(names, *rest)[0], "dml-train": "9.9"}, True)
    )
    with (
        pytest.raises(
            UnfitWorker, match=r"the machine .* \(127\.0\.0\.2\) has dml-train .*; expected 9\.9, as here"
        ),
        cluster.connect(["dml-train"], None),
    ):
        pass
    monkeypatch.setattr(workers, "SECONDS_TO_APPEAR", 0.0)
    monkeypatch.setattr(workers, "look", look)
    hidden = tmp_path / "hidden"
    monkeypatch.setattr(workers.Expected, "questions", lambda self: ([*self.versions], str(hidden), "", 0.0))
    with pytest.raises(UnfitWorker, match="doesn't see"), cluster.connect([], tmp_path):
        pass

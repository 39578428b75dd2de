"""If a cluster loses a machine, six runs still end with the bits of a single process, and no other
run loses work.
"""

from __future__ import annotations

import threading
from io import StringIO

import pytest
from rich.console import Console
from train_support.study_runs import glyph_jobs, result_files

from dml_core import DmlError, registry
from dml_train.cluster import workers
from dml_train.cluster.ray_cluster import RayCluster, RayExecutor
from dml_train.cluster.workers import UnfitWorker
from dml_train.run_folder import RunFolder
from dml_train.studies.runs import run_all

ray = pytest.importorskip("ray", reason="Ray isn't installed, or has no wheel for this platform")

pytestmark = pytest.mark.slow

SETTINGS = ("training.steps=120", "checkpoints.every=10", 'checkpoints.unit="step"')


def test_runs_outlive_their_machine(ray_nodes, tmp_path):
    shown = Console(file=StringIO(), width=300)
    cluster = RayCluster(ray_nodes.address)
    ended = threading.Event()

    def kill():
        def is_training(run):
            return any(run.glob("checkpoints/*")) and not RunFolder(run).is_finished

        while sum(map(is_training, tmp_path.glob("there/*"))) < 3:
            if ended.wait(0.05):
                return
        ray_nodes.kill_worker()  # all machines are training now

    killer = threading.Thread(target=kill)
    with cluster.connect(registry(), tmp_path / "there"), RayExecutor(cluster) as executor:
        killer.start()
        outcomes = run_all(
            glyph_jobs(tmp_path / "there", 6, *SETTINGS),
            executor=executor,
            registry=registry(),
            console=shown,
        )
    ended.set()
    killer.join()
    assert [outcome.fault for outcome in outcomes] == [None] * 6
    said = shown.file.getvalue().splitlines()
    assert len(said) == 1
    assert "it resumes elsewhere" in said[0]
    run_all(
        glyph_jobs(tmp_path / "here", 6, *SETTINGS),
        registry=registry(),
        console=Console(quiet=True),
    )
    assert result_files(tmp_path / "there") == result_files(tmp_path / "here")


def test_a_cluster_that_is_too_small_and_an_unfit_worker_are_named(
    ray_nodes, tmp_path, monkeypatch
):
    cluster = RayCluster(ray_nodes.address)
    small = (
        r"no machine in the cluster provides the 64 cores and 0 GPUs that a worker needs; the "
        r"largest has 1 cores"
    )
    with cluster.connect(registry(), None), pytest.raises(DmlError, match=small):
        RayCluster(ray_nodes.address, cpus=64).count_workers()
    monkeypatch.setattr(
        workers, "_find_version", lambda name: "9.9" if name == "dml-train" else None
    )
    unfit = r"a worker on .* has dml-train .*; expected 9\.9, as here. Install identical versions"
    with (
        cluster.connect(registry(), tmp_path),
        RayExecutor(cluster) as executor,
        pytest.raises(UnfitWorker, match=unfit),
    ):
        run_all(
            glyph_jobs(tmp_path, 2, *SETTINGS),
            executor=executor,
            registry=registry(),
            console=Console(quiet=True),
        )


def test_a_worker_without_a_package_is_named(ray_nodes):
    cluster = RayCluster(ray_nodes.address)

    def import_it():  # a nested function is sent, but not the module
        import no_such_package  # noqa: F401

    lacks = pytest.raises(UnfitWorker, match="a worker lacks the package no_such_package")
    with lacks, cluster.connect(registry(), None):
        ray.get(ray.remote(import_it).remote())

"""Run the shell scripts of examples/embed-shards as the schedulers do. To save time, `dml` runs in
this process.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from train_support.photo_world import train_on, write_photos
from train_support.tiny_world import make_registry

from dml_train import cli

yaml = pytest.importorskip("yaml", reason="reads the job files")

FILES = Path(__file__).parents[2] / "examples" / "embed-shards"
SHARDS = 8
Shell = Callable[..., str]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Make a run and a folder of 2,087 images, which fill nine chunks of at most 256."""
    folder = tmp_path_factory.mktemp("shared")
    train_on(write_photos(folder / "data"), folder / "run", make_registry())
    photos = write_photos(folder / "photos", classes=1, each=7)
    for number in range(2080):
        (photos / f"{number:04}.png").hardlink_to(photos / "class-0" / f"{number % 7}.png")
    CliRunner().invoke(
        cli.main,
        ["embed", f"{folder}/run", f"{photos}", "--out", f"{folder}/whole.npy"],
        obj=make_registry(),
        catch_exceptions=False,
    )
    return folder


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def shell(tmp_path) -> Iterator[Shell]:
    """Run a shell script; `dml` will be answered by this process. Return the output."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("requests", "answers"):
        os.mkfifo(tmp_path / name)
    program(
        programs,
        "dml",
        f'printf "%s\\037" "$@" > {tmp_path}/requests; read code < {tmp_path}/answers; exit $code',
    )
    program(programs, "srun", 'exec "$@"')
    program(
        programs,
        "sbatch",
        """for option; do case "$option" in
          --array=0-*) last="${option#--array=0-}" ;;
          --wrap=*) wrap="${option#--wrap=}" ;;
          --parsable) echo 17 ;;
          --dependency=*) [ "$option" = --dependency=afterok:17 ] || exit 1 ;;
        esac; done
        for task in $(seq 0 "${last:-0}"); do
          SLURM_ARRAY_TASK_ID=$task sh -c "$wrap" || exit
        done""",
    )

    def serve() -> None:
        while (arguments := (tmp_path / "requests").read_text().split("\037")[:-1]) != ["stop"]:
            result = CliRunner().invoke(cli.main, arguments, obj=make_registry())
            (tmp_path / "answers").write_text(f"{result.exit_code}\n")

    server = threading.Thread(target=serve)
    server.start()

    def run(script: str, **environment: object) -> str:
        done = subprocess.run(
            ["sh", "-euc", script],
            env={"PATH": f"{programs}:{os.environ['PATH']}"} | {k: str(v) for k,
                v in environment.items()},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    yield run
    (tmp_path / "requests").write_text("stop\037")
    server.join()


def check_joined(folder: Path, out: Path) -> None:
    assert out.read_bytes() == (folder / "whole.npy").read_bytes()
    sizes = [len(np.load(out.with_stem(f"photos.shard-{i}-of-{SHARDS}"))) for i in range(SHARDS)]
    assert sorted(sizes) == [256] * 7 + [295]


def test_slurm(shell, world, tmp_path):
    shell(
        (FILES / "slurm.sh").read_text(),
        RUN=world / "run",
        IMAGES=world / "photos",
        OUT=tmp_path / "photos.npy",
    )
    check_joined(world, tmp_path / "photos.npy")


def container(pod: dict) -> tuple[str, dict[str, str]]:
    """Return a pod's shell and environment."""
    only = pod["spec"]["containers"][0]
    assert only["command"] == ["sh", "-c"]
    return only["args"][0], {variable["name"]: variable["value"] for variable in only["env"]}


def test_kubernetes(shell, world, tmp_path):
    job, join = yaml.safe_load_all((FILES / "kubernetes.yaml").read_text())
    assert job["spec"]["completionMode"] == "Indexed"
    script, environment = container(job["spec"]["template"])
    here = {"RUN": world / "run", "IMAGES": world / "photos", "OUT": tmp_path / "photos.npy"}
    for index in range(job["spec"]["completions"]):
        shell(script, **environment | here, JOB_COMPLETION_INDEX=index)
    script, environment = container(join["spec"]["jobTemplate"]["spec"]["template"])
    assert environment.keys() == here.keys()
    shell(script, **here)
    check_joined(world, tmp_path / "photos.npy")


def test_skypilot(shell, world, tmp_path):
    task = yaml.safe_load((FILES / "skypilot.yaml").read_text())
    here = {"RUN": world / "run", "IMAGES": world / "photos", "OUT": tmp_path / "photos.npy"}
    assert task["envs"].keys() == here.keys()
    for rank in reversed(range(task["num_nodes"])):
        home = tmp_path / f"home-{rank}"
        home.mkdir()
        ranks = {"SKYPILOT_NODE_RANK": rank, "SKYPILOT_NUM_NODES": task["num_nodes"]}
        shell(task["run"], **here, **ranks, HOME=home)
    check_joined(world, tmp_path / "photos.npy")

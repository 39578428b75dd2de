"""The examples that measure shards on processes, ranks and Dask must give the bits of a single
call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_eval_rs import evaluate

EXAMPLES = Path(__file__).parents[2] / "examples" / "sharded-evaluation"
SHARDS = [f"{part}.npy" for part in range(3)]
# Use localhost, since host names can't be resolved on some machines.
TORCHRUN = [
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--local-addr=localhost",
    "--nproc-per-node=2",
]

pytestmark = pytest.mark.slow  # all examples start processes


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder, rng = tmp_path_factory.mktemp("shards"), np.random.default_rng(0)
    labels = rng.integers(0, 60, 400)
    x = (rng.normal(size=(60, 8))[labels] + rng.normal(size=(400, 8))).astype(np.float32)
    np.save(folder / "labels.npy", labels)
    for name, part in zip(SHARDS, np.array_split(x, 3)):
        np.save(folder / name, part)
    return folder, evaluate(x, labels).to_dict()


def run(folder: Path, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, *arguments, "labels.npy", *SHARDS],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def test_processes_give_the_bits_of_one_call(data: tuple[Path, dict[str, Any]]) -> None:
    folder, expected = data
    assert run(folder, str(EXAMPLES / "on_processes.py"), "2") == expected


@pytest.mark.skipif(find_spec("torch") is None, reason="torchrun comes with torch")
def test_ranks_give_the_bits_of_one_call(data: tuple[Path, dict[str, Any]]) -> None:
    folder, expected = data
    assert run(folder, *TORCHRUN, str(EXAMPLES / "on_ranks.py")) == expected


@pytest.fixture
def dask_address() -> Iterator[str]:
    pytest.importorskip("distributed", reason="Dask isn't installed")
    program = (
        "from dask.distributed import LocalCluster as C; import sys; c = C(n_workers=2, "
        "threads_per_worker=1, host='127.0.0.1', dashboard_address=None); "
        "print(c.scheduler_address, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def test_dask_workers_give_the_bits_of_one_call(
    dask_address: str, data: tuple[Path, dict[str, Any]]
) -> None:
    folder, expected = data
    assert run(folder, str(EXAMPLES / "on_dask.py"), dask_address) == expected

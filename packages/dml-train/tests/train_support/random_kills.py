"""Runs that are killed, stopped and suspended at random moments, and resumed until they end.

The invariant: whatever happened to its processes, a resumed run ends with the bytes of an undisturbed one, and leaves
neither a process nor a partial file.

A moment is a point on the processor time of the run's main thread, so it doesn't depend on the machine's load. The
processes are forked from one that has imported everything. The moments of a seed and number are always the same ones;
where in the code they fall is not.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed import TCPStore

from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint
from train_support import tiny_run
from train_support.tiny_world import make_document

PATIENCE = (
    600  # seconds after which a process counts as hanging; on an idle machine, a run takes less than two
)
IMPORTED = ["dml_train.training.run", "dml_train.processes.loader_server", "torch._dynamo"]
CLOCK = Path("/proc/self/schedstat")  # nanoseconds on a processor
MOST_ATTEMPTS = 4  # disturbed attempts of one run


class Scene(NamedTuple):
    """The processes of a run."""

    ranks: int
    workers: int  # loader processes of each rank


SCENES = {"two ranks": Scene(2, 0), "loaders": Scene(1, 2), "two ranks with loaders": Scene(2, 1)}


class Kills:
    """A search: disturbs runs at random moments, and compares their ends with those of undisturbed runs.

    Args:
        folder: receives the runs.
        seed: of the moments.

    Attributes:
        moments: by scene, signal and victims, the moments that came before the end of an attempt.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.moments: Counter[tuple[str, str, str]] = Counter()
        self._whole: dict[str, tuple[dict[str, bytes], float]] = {}
        self._trials = 0

    def disturb_runs(self, moments: int) -> None:
        """Disturb one run after another, until there were so many moments."""
        while sum(self.moments.values()) < moments:
            self.disturb_run(self._trials)
            self._trials += 1

    def disturb_run(self, number: int) -> None:
        """Disturb and resume the run of this number until it ends, and compare its end."""
        random = np.random.default_rng([self.seed, number])
        name = list(SCENES)[number % len(SCENES)]
        expected, seconds = self._undisturbed(name)
        out = self.folder / "disturbed"
        attempt = Attempt(SCENES[name], out)
        for _ in range(MOST_ATTEMPTS):
            if (moment := attempt.disturb(random, random.uniform(0, seconds))) is not None:
                self.moments[name, *moment] += 1
            attempt.wait()
            if attempt.codes == [0] * SCENES[name].ranks:
                break
            attempt = Attempt(SCENES[name], out)
        else:
            attempt.wait()
        assert attempt.codes == [0] * SCENES[name].ranks, f"run {number} ({name}): {attempt.errors()}"
        found = contents(out)
        different = [file for file in expected.keys() | found.keys() if expected.get(file) != found.get(file)]
        assert not different, f"run {number} ({name}) ended otherwise: {sorted(different)}"
        shutil.rmtree(out)

    def _undisturbed(self, name: str) -> tuple[dict[str, bytes], float]:
        """Return the files at the end of an undisturbed run, and its processor time."""
        if name not in self._whole:
            attempt = Attempt(SCENES[name], self.folder / name)
            seconds = attempt.wait()
            assert attempt.codes == [0] * SCENES[name].ranks, attempt.errors()
            self._whole[name] = contents(self.folder / name), seconds
        return self._whole[name]


class Attempt:
    """The processes that train or resume a run.

    Args:
        scene: how many they are.
        out: the run's folder.
    """

    def __init__(self, scene: Scene, out: Path) -> None:
        document = out.with_name(f"{out.name}.json")
        document.write_text(json.dumps(_document(scene)))
        self._errors = out.with_name(f"{out.name}.errors")
        self._errors.unlink(missing_ok=True)
        self._store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        arguments = [str(document), str(out), "--resume"]
        self._ranks = [
            context.Process(target=_train, args=(environment, str(self._errors), arguments))
            for environment in self._environments(scene.ranks)
        ]
        for process in self._ranks:
            process.start()
        self._server = _parent(self._ranks[0])

    def _environments(self, ranks: int) -> Iterator[dict[str, str]]:
        for rank in range(ranks):
            yield {} if ranks == 1 else {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(self._store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
            }  # fmt: skip

    @property
    def codes(self) -> list[int | None]:
        """The exit codes of the ranks."""
        return [process.exitcode for process in self._ranks]

    def errors(self) -> str:
        """Return what the ranks printed on their error streams."""
        return self._errors.read_text()

    def disturb(self, random: np.random.Generator, moment: float) -> tuple[str, str] | None:
        """Send some processes a signal once the first rank has taken so many seconds of processor time.

        Returns:
            The signal and its victims; None if the run ended before.
        """
        number = random.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
        victims = random.choice(["all", "one rank", "one process"])
        pause = random.uniform(0, 0.3)
        pick = random.integers(1 << 30)
        while self._seconds() < moment:
            if not self._ranks[0].is_alive():
                return None
            time.sleep(0.001)
        ranks = [process.pid for process in self._ranks if process.is_alive()]
        everyone = sorted({*ranks, *_children(self._server)} - {self._server})
        among = ranks if victims == "one rank" else everyone
        chosen = among if victims == "all" else [among[pick % len(among)]] if among else []
        _send(chosen, number)
        if number == signal.SIGSTOP:
            time.sleep(pause)
            _send(chosen, signal.SIGCONT)
        return signal.Signals(number).name, victims

    def wait(self) -> float:
        """Wait until every process has ended, and return the processor time of the first rank."""
        seconds, deadline = 0.0, time.monotonic() + PATIENCE
        while any(process.is_alive() for process in self._ranks) or _children(self._server):
            assert time.monotonic() < deadline, f"processes survive: {self.errors()}"
            seconds = max(seconds, self._seconds())
            time.sleep(0.005)
        return seconds

    def _seconds(self) -> float:
        try:
            return int(Path(f"/proc/{self._ranks[0].pid}/{CLOCK.name}").read_text().split()[0]) / 1e9
        except (OSError, IndexError):  # it has ended
            return 0.0


def contents(out: Path) -> dict[str, bytes]:
    """Read all files of a run; of the checkpoints only the newest, since a run that was stopped has saved others."""
    newest = checkpoint.newest_intact(RunFolder(out).checkpoints)
    assert newest is not None
    partial = [path for path in out.rglob("*") if path.name.startswith(".")]
    assert not partial, f"partial files are left: {partial}"
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and (path.parent == newest.path or RunFolder(out).checkpoints not in path.parents)
    }


def _document(scene: Scene) -> dict[str, Any]:
    return make_document(
        training={"steps": 32, "workers": scene.workers, "timeout": 60, "ema_decay": 0.9},
        evaluation={"every": 15, "unit": "step"},
        validation={"class_fraction": 0.3, "metric": "recall@1"},
        checkpoints={"every": 3},
    )


def _train(environment: dict[str, str], errors: str, arguments: list[str]) -> None:
    os.environ |= environment
    torch.set_num_threads(1)
    # Loaders come from the server of this process, which has imported everything; a new one would take seconds.
    forkserver._forkserver.ensure_running = lambda: None
    tiny_run.with_errors_in(errors, arguments)


def _parent(process: BaseProcess) -> int:
    return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])


def _children(pid: int) -> list[int]:
    """List the children of a process that run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def _send(processes: list[int], number: int) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue

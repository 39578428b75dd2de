"""Starting ranks on this machine: what torchrun does, with the errors and the Ctrl-C of the `dml` command."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType, TracebackType
from typing import Any, NoReturn

import click
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext, start_processes
from torch.distributed.elastic.multiprocessing.api import RunProcsResult, SubprocessContext

from dml_core import DmlError
from dml_train.ranks.ranks import LOST

_LAUNCHED = "DML_LAUNCHED"  # set for ranks whose errors this module reports
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # where torch looks for what a rank has to say
_SECONDS_BETWEEN_LOOKS = 0.1


def launch(nproc: int, arguments: Sequence[str], folder: Path, timeout: float) -> None:
    """Run ``dml`` with these arguments as so many ranks, and wait for their end.

    A signal to stop is passed on to the ranks, which have `timeout` to save and end; a Ctrl-C after it kills them.

    Args:
        nproc: ranks, each with a GPU of its own where there are any.
        arguments: of the `dml` command.
        folder: the run's, to say where to go on.
        timeout: seconds for which ranks wait for one another.

    Raises:
        DmlError: what a rank had to say; or which rank died, and of what; or which didn't stop.
        SystemExit: 128 plus the signal's number, if the ranks were asked to stop and saved a checkpoint.
    """
    # What torch logs of a failing rank is said here, too.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    with TemporaryDirectory(prefix="dml-ranks-") as notes, _Stop() as stop:
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        shared = {
            "WORLD_SIZE": str(nproc),
            "LOCAL_WORLD_SIZE": str(nproc),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(store.port),
            # As torchrun does. A rank on the CPU gets its share of the cores.
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc))),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            "TORCHELASTIC_RUN_ID": str(uuid.uuid4()),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            _LAUNCHED: "1",
        }
        start = partial(
            start_processes,
            name="ranks",
            entrypoint=sys.executable,
            args=dict.fromkeys(range(nproc), ("-m", "dml_train", *arguments)),
            envs={rank: {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(nproc)},
            logs_specs=DefaultLogsSpecs(log_dir=notes),
        )
        # In the main thread, torch would put handlers of its own in place, which raise wherever it is just then.
        with ThreadPoolExecutor(1) as other:
            ranks = stop.ranks = other.submit(start).result()
        while (result := ranks.wait(0)) is None and not stop.asked:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        if result is None:
            ranks.close(stop.asked, math.ceil(timeout))
            result = ranks.wait(0)
    onwards = f"go on from the last checkpoint in {folder} with --resume"
    if stop.at_once:
        click.echo(f"all ranks were killed; {onwards}", err=True)
        sys.exit(128 + signal.SIGINT)
    if result is None:
        raise DmlError(f"the ranks can't be ended, even by SIGKILL; once they have, {onwards}")
    if result.is_failed():
        _tell(result, nproc, stop.asked, onwards)


class _Stop:
    """While it lasts, signals to stop are noted, and a second Ctrl-C kills all ranks."""

    def __init__(self) -> None:
        self.ranks: PContext | None = None
        self.asked: signal.Signals | None = None
        self.at_once = False

    def __enter__(self) -> _Stop:
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
            numbers.append(signal.SIGHUP)
        self._before: dict[int, Any] = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT and isinstance(self.ranks, SubprocessContext):
            self.at_once = True
            for rank in self.ranks.subprocess_handlers.values():
                if rank.proc.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(rank.proc.pid, signal.SIGKILL)
            return
        before = self.asked
        # A terminal that closes is no reason not to save.
        self.asked = before or (signal.SIGTERM if number == signal.SIGHUP else signal.Signals(number))
        if number == signal.SIGINT and not before:  # noted first: once more may come while this is being said
            words = b"stopping after this step, with a checkpoint; Ctrl-C once more kills all ranks\n"
            with suppress(OSError):
                os.write(sys.stderr.fileno(), words)


def _tell(result: RunProcsResult, nproc: int, asked: signal.Signals | None, onwards: str) -> NoReturn:
    """Say why the ranks failed, or exit as those do that were asked to stop."""
    failures = result.failures
    # A rank that died by a signal is the cause of what the others have to say.
    # SIGTERM is how those are stopped that are left.
    passed_on = {-signal.SIGTERM, -(asked or signal.SIGTERM)}
    killed = {rank: f for rank, f in failures.items() if f.exitcode < 0 and f.exitcode not in passed_on}
    # One that lost another rank may say so before that other has said why.
    causes = {
        rank: f
        for rank, f in failures.items()
        if f.exitcode == 2 and LOST not in f.error_file_data.get("message", LOST)
    }
    earliest = min(failures, key=lambda rank: failures[rank].timestamp)
    rank = next(iter(killed or causes), earliest)
    failure = failures[rank]
    if failure.exitcode in (128 + signal.SIGTERM, 128 + signal.SIGINT):
        sys.exit(failure.exitcode)
    if asked and failure.exitcode in passed_on:  # before its first step, or after its last
        sys.exit(128 + asked)
    if failure.exitcode == 2 and failure.error_file_data.get("message"):
        raise DmlError(str(failure.error_file_data["message"]))
    cause = (
        f"was killed by {failure.signal_name()}" if failure.exitcode < 0 else f"failed ({failure.exitcode})"
    )
    raise DmlError(f"rank {rank} of {nproc} {cause}, and the others were stopped; {onwards}")


def report(message: str) -> None:
    """Say what went wrong: to the process that launched this rank, or on the error stream."""
    if _LAUNCHED in os.environ and _ERROR_FILE in os.environ:
        words = json.dumps({"message": message, "timestamp": int(time.time())})
        Path(os.environ[_ERROR_FILE]).write_text(words, encoding="utf-8")
    else:
        click.echo(f"error: {message}", err=True)

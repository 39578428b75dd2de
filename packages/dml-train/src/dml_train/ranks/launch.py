"""Start ranks on this machine, as torchrun does, with the errors and the Ctrl-C of the `dml` command."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import NoReturn

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext, start_processes
from torch.distributed.elastic.multiprocessing.api import RunProcsResult, SubprocessContext

from dml_core import DmlError
from dml_train.processes.signals import STOP_SIGNALS, handle_signals
from dml_train.processes.stopping import Interrupted
from dml_train.ranks.environment import LAUNCHED
from dml_train.ranks.ranks import LOST_RANK

_SECONDS_BETWEEN_LOOKS = 0.1


def launch(
    nproc: int,
    arguments: Sequence[str],
    folder: Path,
    timeout: float,
    *,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Run ``dml`` with these arguments as `nproc` ranks, and wait for their end.

    A signal to stop is passed on to the ranks, which have `timeout` to save and end; a Ctrl-C after it kills them.

    Args:
        nproc: number of ranks, each on a GPU of its own where the machine has any.
        arguments: of the `dml` command.
        folder: the run's, which messages name.
        timeout: seconds for which ranks wait for one another.
        on_start: called when all ranks have been started.

    Raises:
        DmlError: with a rank's own error; or which rank died, and why; or that ranks survived SIGKILL.
        Interrupted: if a second Ctrl-C killed the ranks.
        SystemExit: 128 plus the signal's number, if a signal stopped the ranks after they had saved a checkpoint.
    """
    # This function reports failing ranks itself.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    stop = StopHandler()
    with TemporaryDirectory(prefix="dml-ranks-") as logs, handle_signals(_stop_signals(), stop):
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        shared = {
            "WORLD_SIZE": str(nproc),
            "LOCAL_WORLD_SIZE": str(nproc),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(store.port),
            # As in torchrun, unless the user has set it. A rank on the CPU gets its share of the cores.
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc))),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            "TORCHELASTIC_RUN_ID": str(uuid.uuid4()),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            LAUNCHED: str(os.getpid()),
        }
        start = partial(
            start_processes,
            name="ranks",
            entrypoint=sys.executable,
            args=dict.fromkeys(range(nproc), ("-m", "dml_train", *arguments)),
            envs={rank: {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(nproc)},
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        # In the main thread, torch would install its own signal handlers, which raise at any point of this code.
        with ThreadPoolExecutor(1) as thread:
            ranks = stop.ranks = thread.submit(start).result()
        on_start()
        while (result := ranks.wait(0)) is None and not stop.signal_number:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        hung: list[int] = []
        if result is None:
            seconds = math.ceil(timeout)
            deadline = time.monotonic() + seconds
            ranks.close(stop.signal_number, seconds)  # at the deadline, it sends SIGKILL
            result = ranks.wait(0)
            if result is not None and time.monotonic() >= deadline:
                hung = [rank for rank, f in result.failures.items() if f.exitcode == -signal.SIGKILL]
    advice = f"resume from the last checkpoint in {folder}"
    if stop.killed:
        raise Interrupted(f"all ranks were killed; {advice}", signal.SIGINT, arguments=("resume",))
    if result is None:
        raise DmlError(
            f"the ranks survive even SIGKILL; once they have ended, {advice}", arguments=("resume",)
        )
    if result.is_failed():
        _raise_failure(result, nproc, stop.signal_number, advice, hung)


class StopHandler:
    """A signal handler that records the first signal to stop, and kills all ranks at a Ctrl-C after it.

    Attributes:
        ranks: the ranks, once they are started.
        signal_number: the signal to pass on to them, once one came.
        killed: whether they were killed.
    """

    def __init__(self) -> None:
        self.ranks: PContext | None = None
        self.signal_number: signal.Signals | None = None
        self.killed = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.signal_number and number == signal.SIGINT and isinstance(self.ranks, SubprocessContext):
            self.killed = True
            for rank in self.ranks.subprocess_handlers.values():
                if rank.proc.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(rank.proc.pid, signal.SIGKILL)
            return
        first = self.signal_number is None
        if first:  # recorded before the message: a second Ctrl-C may come while that is written
            # Ranks know no SIGHUP; they save at a SIGTERM.
            self.signal_number = signal.SIGTERM if number == signal.SIGHUP else signal.Signals(number)
        if first and number == signal.SIGINT:
            message = b"stopping after this step, with a checkpoint; Ctrl-C once more kills all ranks\n"
            with suppress(OSError):
                os.write(sys.stderr.fileno(), message)


def _stop_signals() -> list[signal.Signals]:
    hangs_up = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN  # not under nohup
    return [*STOP_SIGNALS, signal.SIGHUP] if hangs_up else [*STOP_SIGNALS]


def _raise_failure(
    result: RunProcsResult,
    nproc: int,
    signal_number: signal.Signals | None,
    advice: str,
    hung: Sequence[int],
) -> NoReturn:
    """Raise the error of the rank that failed first, or exit as ranks do that a signal stopped.

    `hung` are the ranks that the launcher killed, since they didn't stop in time.
    """
    failures = result.failures
    # The death of a rank by a signal causes the errors of the others. The elastic agent ends those with SIGTERM.
    passed_on = {-signal.SIGTERM, -(signal_number or signal.SIGTERM)}
    killed = {
        rank: f
        for rank, f in failures.items()
        if f.exitcode < 0 and f.exitcode not in passed_on and rank not in hung
    }
    # A rank that lost another one may report it before the other has reported the cause.
    causes = {
        rank: f
        for rank, f in failures.items()
        if f.exitcode == 2 and LOST_RANK not in f.error_file_data.get("message", LOST_RANK)
    }
    if hung and not killed and not causes:
        raise DmlError(
            f"{'ranks' if len(hung) > 1 else 'rank'} {', '.join(map(str, sorted(hung)))} of {nproc} didn't end within "
            "the timeout (training.timeout) after the signal to stop, so the launcher killed "
            f"{'them' if len(hung) > 1 else 'it'}: a rank that hangs keeps the others waiting; {advice}",
            arguments=("resume",),
        )
    earliest = min(failures, key=lambda rank: failures[rank].timestamp)
    rank = next(iter(killed or causes), earliest)
    failure = failures[rank]
    if failure.exitcode in (128 + signal.SIGTERM, 128 + signal.SIGINT):
        sys.exit(failure.exitcode)
    if signal_number and failure.exitcode in passed_on:  # before its first step, or after its last
        sys.exit(128 + signal_number)
    if failure.exitcode == 2 and failure.error_file_data.get("message"):
        raise DmlError(str(failure.error_file_data["message"]))
    cause = (
        f"was killed by {failure.signal_name()}" if failure.exitcode < 0 else f"failed ({failure.exitcode})"
    )
    raise DmlError(
        f"rank {rank} of {nproc} {cause}, and the others were stopped; {advice}", arguments=("resume",)
    )

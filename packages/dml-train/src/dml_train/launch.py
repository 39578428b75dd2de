"""Starting ranks on this machine: what torchrun does, with the errors of the `dml` command."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import click
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from dml_core import DmlError
from dml_train.distributed import LOST

_LAUNCHED = "DML_LAUNCHED"  # set for ranks whose errors this module reports
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # where torch's agent looks for what a rank has to say


def launch(nproc: int, arguments: Sequence[str], folder: Path) -> None:
    """Run ``dml`` with these arguments as so many ranks, and wait for their end.

    Args:
        nproc: ranks, each with a GPU of its own where there are any.
        arguments: of the `dml` command.
        folder: the run's, to say where to go on.

    Raises:
        DmlError: what a rank had to say; or which rank died, and of what.
        SystemExit: 128 plus the signal's number, if the ranks were asked to stop and saved a checkpoint.
    """
    # What the agent logs of a failing rank, the exception has too.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ[_LAUNCHED] = "1"
    # As torchrun does; said here so that it doesn't warn. A rank on the CPU gets its share of the cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "dml_train", *arguments)
    except ChildFailedError as error:
        # A rank that died by a signal is the cause of what the others have to say.
        # SIGTERM is how the agent stops those that are left.
        killed = {
            rank: f for rank, f in error.failures.items() if f.exitcode < 0 and f.exitcode != -signal.SIGTERM
        }
        # One that lost another rank may say so before that other has said why.
        causes = {
            rank: f
            for rank, f in error.failures.items()
            if f.exitcode == 2 and LOST not in f.error_file_data.get("message", LOST)
        }
        rank, failure = next(iter((killed or causes).items()), None) or error.get_first_failure()
        if failure.exitcode in (128 + signal.SIGTERM, 128 + signal.SIGINT):
            sys.exit(failure.exitcode)
        if failure.exitcode == 2 and failure.error_file_data.get("message"):
            raise DmlError(str(failure.error_file_data["message"])) from error
        cause = (
            f"was killed by {failure.signal_name()}"
            if failure.exitcode < 0
            else f"failed ({failure.exitcode})"
        )
        raise DmlError(
            f"rank {rank} of {nproc} {cause}, and the others were stopped; "
            f"go on from the last checkpoint in {folder} with --resume"
        ) from error
    except SignalException as error:
        sys.exit(128 + error.sigval)
    finally:
        del os.environ[_LAUNCHED]


def report(message: str) -> None:
    """Say what went wrong: to the process that launched this rank, or on the error stream."""
    if _LAUNCHED in os.environ and _ERROR_FILE in os.environ:
        words = json.dumps({"message": message, "timestamp": int(time.time())})
        Path(os.environ[_ERROR_FILE]).write_text(words, encoding="utf-8")
    else:
        click.echo(f"error: {message}", err=True)

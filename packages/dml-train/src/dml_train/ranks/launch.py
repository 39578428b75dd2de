"""`dml train --nproc`: run torchrun on this machine, and report errors of ranks as messages of the
`dml` command.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import torch.distributed.run
from torch.distributed.elastic.multiprocessing import ProcessFailure, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from dml_core import DmlError
from dml_train.ranks.environment import LAUNCHED
from dml_train.ranks.ranks import LOST_RANK


def launch(nproc: int, arguments: Sequence[str], folder: Path, timeout: float) -> None:
    """Run ``dml`` with these arguments as `nproc` ranks, and wait for all ranks to end.

    torchrun forwards SIGTERM and SIGINT to the ranks, and kills ranks that haven't saved and ended
    after `timeout` seconds. Environment variables of torchrun (``PET_...``) take precedence.

    Args:
        nproc: number of ranks; when GPUs are present, ranks use different GPUs.
        arguments: arguments of the `dml` command.
        folder: the run's folder, for messages.
        timeout: seconds after which a rank stops waiting for the others.

    Raises:
        DmlError: if a rank fails, with the rank's error; if a rank dies, with the cause.
        SystemExit: if a signal stops the ranks, with 128 plus the signal's number.
    """
    logging.disable(logging.ERROR)  # silence torchrun, since this function reports failing ranks
    os.environ[LAUNCHED] = str(os.getpid())
    # Divide the cores between ranks on the CPU.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(math.ceil(timeout)))
    # Don't forward SIGHUP: it ends this process, and the ranks then save (except under nohup, which
    # ignores it).
    os.environ.setdefault("PET_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT")
    with TemporaryDirectory(prefix="dml-ranks-") as logs:
        options = [
            "--standalone",
            "--local-addr=localhost",
            f"--nproc-per-node={nproc}",
            f"--log-dir={logs}",
        ]
        try:
            torch.distributed.run.main([*options, "--module", "dml_train", *arguments])
        except ChildFailedError as error:
            _raise_failure(error.failures, nproc, folder)
        except SignalException as stopped:
            errors = (
                json.loads(path.read_bytes())["message"] for path in Path(logs).rglob("error.json")
            )
            if message := next(
                (text for text in errors if LOST_RANK not in text), ""
            ):  # e.g. a disk is full
                raise DmlError(message) from None
            sys.exit(128 + stopped.sigval)


def _raise_failure(failures: Mapping[int, ProcessFailure], nproc: int, folder: Path) -> NoReturn:
    """Raise the error of the rank that failed first; if a signal stopped it, exit with this rank's
    code.
    """
    messages = {
        rank: str(failure.error_file_data["message"])
        for rank, failure in failures.items()
        if failure.exitcode == 2 and failure.error_file_data.get("message")
    }
    # torchrun ends the other ranks with SIGTERM. Note that a rank may report a lost peer before the
    # peer reports why.
    killed = [
        rank for rank, f in failures.items() if f.exitcode < 0 and f.exitcode != -signal.SIGTERM
    ]
    causes = [rank for rank, message in messages.items() if LOST_RANK not in message]
    earliest = min(failures, key=lambda rank: failures[rank].timestamp)
    rank = next(iter([*killed, *causes]), earliest)
    failure = failures[rank]
    if failure.exitcode in (128 + signal.SIGTERM, 128 + signal.SIGINT):
        sys.exit(failure.exitcode)
    if rank in messages:
        raise DmlError(messages[rank])
    cause = (
        f"was killed by {failure.signal_name()}"
        if failure.exitcode < 0
        else f"failed ({failure.exitcode})"
    )
    raise DmlError(
        f"rank {rank} of {nproc} {cause}, and the others were stopped; resume from the last "
        f"checkpoint in {folder}",
        arguments=("resume",),
    )

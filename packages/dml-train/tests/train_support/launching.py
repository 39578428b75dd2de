"""Functions that the tests of launching start in new processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from dml_core import DmlError
from dml_train.processes.stopping import end_with_launcher
from dml_train.ranks.launch import launch


def launch_script(tmp_path: Path, script: str, timeout: float, ignored: int | None = None) -> None:
    """Launch this shell script on 2 ranks; ``{tmp}`` in the script will be replaced by the
    folder.
    """
    os.dup2(os.open(tmp_path / "errors", os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
    program = tmp_path / "rank.sh"
    program.write_text(f"#!/bin/sh\n{script.replace('{tmp}', str(tmp_path))}\n")
    program.chmod(0o755)
    sys.executable = str(program)
    os.environ["OMP_NUM_THREADS"] = "1"
    # When a shell runs the tests in the background, children ignore Ctrl-C, and traps of ranks
    # would not catch it. Under nohup they ignore SIGHUP.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if ignored is not None:
        signal.signal(ignored, signal.SIG_IGN)

    try:
        launch(2, [], tmp_path / "run", timeout)
    except DmlError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def fork_orphan(tmp_path: Path, elastic: bool, leads: bool, suspended: bool) -> None:
    """Fork a process that records whether a signal stopped it; with `elastic` and `leads`, it
    resembles a rank.
    """
    ready, write = os.pipe()
    parent = os.getpid()
    if child := os.fork():
        os.read(ready, 1)
        if suspended:
            os.kill(child, signal.SIGSTOP)
            os.waitpid(child, os.WUNTRACED)
        return
    if leads:
        os.setsid()
    if elastic:
        os.environ["TORCHELASTIC_RUN_ID"] = "a run"
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.set())
    with end_with_launcher(parent, seconds_between_looks=0.01):
        os.write(write, b".")
        while os.getppid() == parent:
            time.sleep(0.01)
        end = "stopped" if stopped.wait(240 if elastic and leads else 0.5) else "survived"
    part = tmp_path / "end.part"
    part.write_text(end)
    part.rename(tmp_path / "end")
    os._exit(0)


def list_marked(mark: str) -> list[int]:
    """List the processes with this mark in the environment, which child processes inherit."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
        except OSError:  # the process ended, or belongs to a different user
            continue
    return found

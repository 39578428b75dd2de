"""Train in the tiny world in a new process: ``python tiny_run.py DOCUMENT.json OUT [--resume] [--die-at STEP]``.

With ``--die-at``, the process (only that of the last rank, if there are several) kills itself after that step,
as ``kill -9`` would.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
from tiny_world import TinyPlugin

import dml_core.plugin
from dml_core import Plugins, Registry, hookimpl
from dml_train.recipe.checking import parse
from dml_train.training.run import train


class DieAt:
    def __init__(self, step: int) -> None:
        self.step = step

    @hookimpl
    def dml_step_end(self, run, step) -> None:
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"  # by torchrun, after this death
        if step == self.step and run.rank == run.world_size - 1 and not restarted:
            os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: list[str]) -> None:
    document, out, *flags = arguments
    plugins = Plugins()
    plugins.register(dml_core.plugin, distribution="dml-core")
    plugins.register(TinyPlugin(), distribution="tiny")
    if "--die-at" in flags:
        plugins.register(DieAt(int(flags[flags.index("--die-at") + 1])), distribution="die-at")
    registry = Registry(plugins)
    recipe = parse(json.loads(Path(document).read_text()), registry)
    train(recipe, Path(out), resume="--resume" in flags, force="--force" in flags, registry=registry)


def with_errors_in(path: str, arguments: list[str]) -> None:
    """Run `main` in a forked process, with its error stream in a file."""
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
    torch.set_num_threads(1)
    main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])

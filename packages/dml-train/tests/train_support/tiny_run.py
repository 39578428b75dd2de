"""A program that trains by a tiny recipe: ``tiny_run DOCUMENT.json OUT [--resume] [--force]
[--die-at STEP]``.

`command` returns the command line, which must run in `FOLDER`. With ``--die-at``, the process (if
there are multiple ranks, only the last rank) kills itself after that step, like ``kill -9``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from dml_core import hookimpl
from dml_train.recipe.checking import parse
from dml_train.training.run import train
from train_support.tiny_world import make_registry

FOLDER = Path(__file__).parents[1]  # where ``python -m`` finds this module


def command(*arguments: str | Path, ranks: int = 1, restarts: int = 0) -> list[str]:
    """Return the command that runs this program in `FOLDER`, using torchrun if there are 2 or more
    ranks.
    """
    # Use localhost, since host names can't be resolved on some machines.
    torchrun = [
        "-m", "torch.distributed.run", "--standalone", "--local-addr=localhost",
        f"--nproc-per-node={ranks}", f"--max-restarts={restarts}",
    ]  # fmt: skip
    program = ["-m", "train_support.tiny_run", *map(str, arguments)]
    return [sys.executable, *(torchrun if ranks > 1 else []), *program]


class DieAt:
    def __init__(self, step: int) -> None:
        self.step = step

    @hookimpl
    def dml_step_end(self, run, step) -> None:
        restarted = (
            os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        )  # torchrun sets this on restart
        if step == self.step and run.rank == run.world_size - 1 and not restarted:
            os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: list[str]) -> None:
    document, out, *flags = arguments
    registry = make_registry()
    if "--die-at" in flags:
        registry.plugins.register(
            DieAt(int(flags[flags.index("--die-at") + 1])), distribution="die-at"
        )
    recipe = parse(json.loads(Path(document).read_text()), registry)
    train(
        recipe, Path(out), resume="--resume" in flags, force="--force" in flags, registry=registry
    )


if __name__ == "__main__":
    main(sys.argv[1:])

"""Kill a short run at random moments, resume it, and count the different results: there must be
only one.

    python benchmarks/training/bench_soak.py [KILLS] [SEED]

The run uses the recipe of the trainer's tests (batch norm, dropout, augmentation, a loss that draws
random numbers) for 40 steps, with a checkpoint after every third step. A trial is killed once by
SIGKILL, at a random moment within the duration of a complete run, and then resumed. Processes are
forked after everything is imported, so that nearly all time is spent in the run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from io import StringIO
from pathlib import Path

import torch
import torch._dynamo  # otherwise, each child would import this in the first step
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2] / "packages/dml-train/tests"))

from train_support.tiny_world import make_document, make_registry

from dml_core import Registry
from dml_train.recipe.checking import parse
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint
from dml_train.training.run import train

DOCUMENT = make_document(
    training={"steps": 40, "ema_decay": 0.9},
    schedule={"optimizer.lr": {"kind": "cosine", "end": 0.0}},
    checkpoints={"every": 3},
    logging={"every": 2},
)


def fork_training(recipe: Recipe, registry: Registry, out: Path) -> int:
    """Train or resume in a child process; return the child's id."""
    if child := os.fork():
        return child
    try:
        train(recipe, out, resume=True, registry=registry, console=Console(file=StringIO()))
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)
    os._exit(0)


def digest(value: object) -> str:
    """Hash all bits of a tree of tensors and plain values."""
    if isinstance(value, torch.Tensor):
        words = f"{value.dtype}{tuple(value.shape)}".encode() + value.contiguous().numpy().tobytes()
    elif isinstance(value, dict):
        words = "".join(f"{key}:{digest(value[key])}" for key in sorted(value, key=str)).encode()
    elif isinstance(value, list | tuple):
        words = "".join(map(digest, value)).encode()
    else:
        words = repr(value).encode()
    return hashlib.sha256(words).hexdigest()


def result(out: Path) -> str:
    """Hash all results that are saved by a run."""
    folder = RunFolder(out)
    last = checkpoint.newest_intact(folder.checkpoints)
    assert last is not None
    files = (folder.metrics, folder.embeddings(), folder.evaluation, folder.recipe)
    return digest([last.step, last.weights(), last.state(), *(file.read_bytes() for file in files)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kills", type=int, nargs="?", default=200)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    arguments = parser.parse_args()
    kills, seed = arguments.kills, arguments.seed
    torch.set_num_threads(1)
    registry = make_registry()
    recipe = parse(DOCUMENT, registry)
    moment = random.Random(seed)
    ends, at = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("warm", "whole"):
            begun = time.perf_counter()
            assert os.waitpid(fork_training(recipe, registry, Path(scratch, name)), 0)[1] == 0
        length = time.perf_counter() - begun
        expected = result(Path(scratch, "whole"))
        for trial in range(kills):
            out = Path(scratch, str(trial))
            child = fork_training(recipe, registry, out)
            time.sleep(moment.uniform(0, length))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            last = checkpoint.newest_intact(out / "checkpoints")
            stage = f"step {last.step}" if last else "none"
            at["the end" if (out / "evaluation.json").exists() else stage] += 1
            status = os.waitpid(fork_training(recipe, registry, out), 0)[1]
            assert status == 0, f"trial {trial} did not resume"
            ends[result(out)] += 1
    print(f"seed {seed}; a whole run takes {length:.2f} s")
    print(f"{'kills':>6} {'resumes':>8} {'different ends':>15} {'as the uninterrupted run':>25}")
    print(f"{kills:>6} {sum(ends.values()):>8} {len(ends):>15} {ends[expected]:>25}")
    print(
        "newest checkpoint when killed: "
        + ", ".join(f"{stage} × {n}" for stage, n in sorted(at.items()))
    )


if __name__ == "__main__":
    main()

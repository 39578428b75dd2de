"""Kill a short run at random moments, resume it, and count the different results: there must be one.

    python benchmarks/training/bench_soak.py [KILLS] [SEED]

The run is that of the trainer's tests (batch norm, dropout, augmentation, a loss that draws random numbers), 40 steps
with a checkpoint every 3. Each trial is killed by SIGKILL once, at a random moment within the duration of a complete
run, and resumed. Processes are forked from one that has imported everything, so that they spend nearly all of their
time in the run.
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
import torch._dynamo  # optimizers import it on their first step, which would cost each child seconds
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2] / "packages/dml-train/tests"))

from train_support.tiny_world import make_registry

from dml_core import Registry
from dml_train.recipe.checking import parse
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint
from dml_train.training.run import train

DOCUMENT = {
    "training": {"steps": 40, "seed": 3, "device": "cpu", "ema_decay": 0.9},
    "dataset": {"name": "tiny"},
    "backbone": {"name": "tiny"},
    "embedding": {"dim": 8},
    "sampler": {"name": "class-balanced", "classes_per_batch": 4, "images_per_class": 2},
    "loss": {"name": "tiny"},
    "optimizer": {"name": "adamw", "lr": 0.01},
    "schedule": {"optimizer.lr": {"kind": "cosine", "end": 0.0}},
    "checkpoints": {"every": 3, "unit": "step"},
    "logging": {"every": 2, "loggers": [{"name": "jsonl"}]},
}


def fork_training(recipe: Recipe, registry: Registry, out: Path) -> int:
    """Train, or resume, in a child of this process, and return its id."""
    if child := os.fork():
        return child
    try:
        train(recipe, out, resume=True, registry=registry, console=Console(file=StringIO()))
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)
    os._exit(0)


def digest(value: object) -> str:
    """Hash a tree of tensors and plain values, to the bit."""
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
    """Hash everything that a run has saved."""
    folder = RunFolder(out)
    last = checkpoint.newest_intact(folder.checkpoints)
    assert last is not None
    files = [
        path.read_bytes() for path in (folder.metrics, folder.embeddings(), folder.evaluation, folder.recipe)
    ]
    parts = [
        digest(last.weights()),
        digest(last.state()),
        *(hashlib.sha256(content).hexdigest() for content in files),
    ]
    return digest([last.step, *parts])


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
    ends: Counter[str] = Counter()
    at: Counter[str] = Counter()
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
            stage = (
                "the end" if (out / "evaluation.json").exists() else f"step {last.step}" if last else "none"
            )
            at[stage] += 1
            assert os.waitpid(fork_training(recipe, registry, out), 0)[1] == 0, (
                f"trial {trial} did not resume"
            )
            ends[result(out)] += 1
    print(f"seed {seed}; a whole run takes {length:.2f} s")
    print(f"{'kills':>6} {'resumes':>8} {'different ends':>15} {'as the uninterrupted run':>25}")
    print(f"{kills:>6} {sum(ends.values()):>8} {len(ends):>15} {ends[expected]:>25}")
    print("newest checkpoint when killed: " + ", ".join(f"{stage} × {n}" for stage, n in sorted(at.items())))


if __name__ == "__main__":
    main()

"""What the trainer costs: images/s of `dml_train`'s loop over a bare hand-written loop of the same job.

    python benchmarks/training/bench_overhead.py [STEPS] [ROUNDS]

The job is the demo's (glyphs with augmentation, its network, loss and optimizer). Both loops run in turn, a few rounds
each, so that a busy machine slows both; the table gives each round's images/s, and the median of the ratios. The shares
of time are those of the bare loop, measured apart.
"""

from __future__ import annotations

import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console

import dml_core.plugin
import dml_losses.plugin
import dml_train.plugin
from dml_core import Component, Plugins, Registry, hookimpl
from dml_train.experiment import Experiment, build
from dml_train.recipe import load
from dml_train.run_folder import RunFolder
from dml_train.seeds import row_seeds
from dml_train.trainer import Trainer


class Stopwatch:
    """From the first step to the last logged one, checkpoints and evaluation left out."""

    @hookimpl
    def dml_run_start(self):
        self.begun = time.perf_counter()

    @hookimpl
    def dml_step_end(self):
        self.ended = time.perf_counter()

    @hookimpl
    def dml_evaluators(self):
        yield Component("none", NoEvaluator, "for loops that are timed before any evaluation")


class NoEvaluator:
    def __init__(self, **options):
        pass

    def evaluate(self, embeddings, labels, gallery=None, gallery_labels=None):
        raise AssertionError("timed runs end before they are evaluated")


def trainer_seconds(experiment: Experiment, registry: Registry, watch: Stopwatch) -> float:
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(experiment, RunFolder(Path(folder)), registry, Console(quiet=True))
        trainer.finish = lambda: None
        trainer.train()
    return watch.ended - watch.begun


def bare_seconds(experiment: Experiment, shares: dict[str, float] | None = None) -> float:
    """The loop that one would write by hand, with the learning rate's schedule and a loss printed now and then."""
    model, loss_function, seed = experiment.model.train(), experiment.loss, experiment.recipe.training.seed
    optimizer = experiment.optimizer.torch
    begun = mark = time.perf_counter()

    def note(name: str) -> None:
        nonlocal mark
        if shares is not None:
            now = time.perf_counter()
            shares[name] = shares.get(name, 0.0) + now - mark
            mark = now

    for step in range(experiment.num_steps):
        indices = experiment.sampler.batch_at(*divmod(step, len(experiment.sampler)))
        images = experiment.train.load(indices, row_seeds(seed, step, indices))
        labels = torch.from_numpy(experiment.train.labels[indices])
        note("load")
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - step / experiment.num_steps)
        embeddings = model(images.to(memory_format=torch.channels_last))
        note("network, forward")
        loss = loss_function(embeddings, labels)
        note("loss, forward")
        loss.backward()
        note("backward")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        note("optimizer")
        if step % 10 == 9:
            loss.item()
    return time.perf_counter() - begun


def main() -> None:
    steps, rounds = (int(a) for a in (*sys.argv[1:], *("40", "5")[len(sys.argv) - 1 :]))
    watch = Stopwatch()
    plugins = Plugins()
    for module in (dml_core.plugin, dml_losses.plugin, dml_train.plugin):
        plugins.register(module, distribution=module.__name__.partition(".")[0])
    plugins.register(watch, distribution="stopwatch")
    registry = Registry(plugins)
    changes = [f"training.steps={steps}", "evaluation.name=none", "checkpoints.every=0"]
    recipe = load("demo", changes, registry)
    batch = len(build(recipe, registry).sampler.batch_at(0, 0))
    machine = platform.processor() or platform.machine()
    print(
        f"{machine}, {torch.get_num_threads()} threads, torch {torch.__version__}; demo recipe, {steps} steps"
    )
    bare_seconds(build(recipe, registry))  # warm-up
    print(f"{'round':<8}{'bare':>12}{'dml train':>12}{'ratio':>8}   images/s")
    ratios = []
    for number in range(rounds):
        bare = bare_seconds(build(recipe, registry))
        ours = trainer_seconds(build(recipe, registry), registry, watch)
        ratios.append(bare / ours)
        print(
            f"{number:<8}{steps * batch / bare:>12.0f}{steps * batch / ours:>12.0f}{ratios[-1]:>8.3f}",
            flush=True,
        )
    print(f"{'median':<32}{statistics.median(ratios):>8.3f}")
    shares: dict[str, float] = {}
    total = bare_seconds(build(recipe, registry), shares)
    print(
        "bare loop: " + ", ".join(f"{name} {100 * seconds / total:.1f} %" for name, seconds in shares.items())
    )


if __name__ == "__main__":
    main()

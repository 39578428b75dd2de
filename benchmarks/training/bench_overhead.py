"""What the trainer costs: images/s of `dml_train`'s loop over a bare hand-written loop of the same job.

    python benchmarks/training/bench_overhead.py [STEPS] [ROUNDS]

The job is the demo's (glyphs with augmentation, its network, loss and optimizer). Both loops run in turn, a few rounds
each. The ratio is that of the CPU's time, all threads together, which other work on the machine touches less than it
does the images/s by the clock. The shares of time are those of the bare loop, measured apart.
"""

from __future__ import annotations

import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

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


class Moment(NamedTuple):
    """By the clock, and by what the CPU has spent on this process."""

    clock: float
    cpu: float


def now() -> Moment:
    return Moment(time.perf_counter(), time.process_time())


def between(begun: Moment, ended: Moment) -> Moment:
    return Moment(ended.clock - begun.clock, ended.cpu - begun.cpu)


class Stopwatch:
    """From the first step to the last logged one, checkpoints and evaluation left out."""

    @hookimpl
    def dml_run_start(self):
        self.begun = now()

    @hookimpl
    def dml_step_end(self):
        self.ended = now()

    @hookimpl
    def dml_evaluators(self):
        yield Component("none", NoEvaluator, "for loops that are timed before any evaluation")


class NoEvaluator:
    def __init__(self, **options):
        pass

    def evaluate(self, embeddings, labels, gallery=None, gallery_labels=None):
        raise AssertionError("timed runs end before they are evaluated")


def trainer_time(experiment: Experiment, registry: Registry, watch: Stopwatch) -> Moment:
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(experiment, RunFolder(Path(folder)), registry, Console(quiet=True))
        trainer.finish = lambda: None
        trainer.train()
    return between(watch.begun, watch.ended)


def bare_time(experiment: Experiment, shares: dict[str, float] | None = None) -> Moment:
    """The loop that one would write by hand, with the learning rate's schedule and a loss printed now and then."""
    model, loss_function, seed = experiment.model.train(), experiment.loss, experiment.recipe.training.seed
    optimizer = experiment.optimizer.torch
    begun = now()
    mark = begun.clock

    def note(name: str) -> None:
        nonlocal mark
        if shares is not None:
            moment = time.perf_counter()
            shares[name] = shares.get(name, 0.0) + moment - mark
            mark = moment

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
    return between(begun, now())


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
    bare_time(build(recipe, registry))  # warm-up
    print(f"{'round':<8}{'bare':>12}{'dml train':>12}{'bare':>12}{'dml train':>12}{'ratio':>8}")
    print(f"{'':<8}{'images/s':>12}{'images/s':>12}{'CPU s':>12}{'CPU s':>12}")
    ratios = []
    for number in range(rounds):
        bare = bare_time(build(recipe, registry))
        ours = trainer_time(build(recipe, registry), registry, watch)
        ratios.append(bare.cpu / ours.cpu)
        speeds = f"{steps * batch / bare.clock:>12.0f}{steps * batch / ours.clock:>12.0f}"
        print(f"{number:<8}{speeds}{bare.cpu:>12.2f}{ours.cpu:>12.2f}{ratios[-1]:>8.3f}", flush=True)
    print(f"{'median':<56}{statistics.median(ratios):>8.3f}")
    shares: dict[str, float] = {}
    total = bare_time(build(recipe, registry), shares).clock
    print(
        "bare loop: " + ", ".join(f"{name} {100 * seconds / total:.1f} %" for name, seconds in shares.items())
    )


if __name__ == "__main__":
    main()

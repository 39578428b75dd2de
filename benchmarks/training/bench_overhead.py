"""Measure the trainer's overhead: images/s of `dml_train`, a bare loop, and
pytorch-metric-learning's trainer.

    python benchmarks/training/bench_overhead.py [STEPS] [ROUNDS] [--recipe NAME]
        [--set KEY=VALUE ...]

The recipe's loss must be NormSoftmax. By default, the job is the demo: glyphs with augmentation, a
network in channels-last, fused AdamW, batches of 128; loader processes are not used. In every
round, all three train from the start, in alternating order; a ratio compares wall time within a
round, and the median over rounds is the result. pytorch-metric-learning uses `MetricLossOnly` and
`NormalizedSoftmaxLoss`, and gets complete batches from this data set. All three keep freed memory
(see `keep_freed_memory`).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import io
import logging
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from pytorch_metric_learning import losses, trainers
from rich.console import Console

import dml_core.plugin
import dml_losses.plugin
import dml_train.plugin
from dml_core import Component, Plugins, Registry, hookimpl
from dml_train.recipe.checking import parse
from dml_train.recipe.loading import read
from dml_train.run_folder import RunFolder
from dml_train.seeds import row_seeds
from dml_train.training.build import Experiment, build
from dml_train.training.trainer import Trainer


class Moment(NamedTuple):
    """Wall time, CPU time and page faults of this process."""

    clock: float
    cpu: float
    faults: int


def now() -> Moment:
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return Moment(time.perf_counter(), time.process_time(), faults)


def between(begun: Moment, ended: Moment) -> Moment:
    return Moment(ended.clock - begun.clock, ended.cpu - begun.cpu, ended.faults - begun.faults)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next step.

    By default, glibc may return memory to the kernel and request it again, depending on thresholds
    and on the heap's layout. In some rounds, any of the loops then spends up to a quarter of a step
    on 13,000 page faults.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD: the maximum
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


class Stopwatch:
    """Stopwatch that runs from the first step to the last logged step; checkpoints and evaluation
    are not counted.
    """

    @hookimpl
    def dml_run_start(self):
        self.begun = now()

    @hookimpl
    def dml_step_end(self):
        self.ended = now()

    @hookimpl
    def dml_evaluators(self):
        yield Component("none", NoEvaluator, "for timed loops, which never evaluate")


class NoEvaluator:
    def __init__(self, **options):
        pass

    def evaluate(self, embeddings, labels, gallery=None, gallery_labels=None):
        raise AssertionError("timed runs end before evaluation")


def trainer_time(
    experiment: Experiment, registry: Registry, watch: Stopwatch
) -> tuple[Moment, float]:
    """Time our trainer; also return the seconds for logging (`metrics.jsonl`, TensorBoard, the
    progress line).
    """
    logging = 0.0

    def timed(log: Callable[..., None]) -> Callable[..., None]:
        def logged(*arguments: object) -> None:
            nonlocal logging
            begun = time.perf_counter()
            log(*arguments)
            logging += time.perf_counter() - begun

        return logged

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(experiment, RunFolder(Path(folder)), registry, Console(quiet=True))
        trainer.finish = lambda: None
        trainer.log = timed(trainer.log)
        trainer.train()
    return between(watch.begun, watch.ended), logging


class PmlDataset(torch.utils.data.Dataset):
    """Training split as pytorch-metric-learning expects it; a batch is loaded in a single call, as
    by `dml_train`.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.split, self.seed = experiment.train, experiment.recipe.training.seed

    def __len__(self) -> int:
        return len(self.split)

    def __getitems__(self, items: list[int]) -> list[tuple[torch.Tensor, int]]:
        indices = np.array(items)
        images = self.split.load(indices, row_seeds(self.seed, 0, indices))
        return list(zip(images, self.split.labels[indices].tolist(), strict=True))


def pml_time(experiment: Experiment) -> Moment:
    model, recipe = experiment.model, experiment.recipe
    loss = losses.NormalizedSoftmaxLoss(
        len(experiment.train.class_names),
        recipe.embedding.dim,
        temperature=recipe.loss["temperature"],
    )
    table = recipe.optimizer
    optimizers = {
        f"{name}_optimizer": torch.optim.AdamW(
            part.parameters(), lr=table.lr, weight_decay=table.weight_decay, fused=True
        )
        for name, part in (("trunk", model), ("metric_loss", loss))
    }
    trainer = trainers.MetricLossOnly(
        models={"trunk": model, "embedder": torch.nn.Identity()},
        optimizers=optimizers,
        batch_size=len(experiment.sampler.batch_at(0, 0)),
        loss_funcs={"metric_loss": loss},
        dataset=PmlDataset(experiment),
        iterations_per_epoch=experiment.num_steps,
        dataloader_num_workers=0,
    )
    # The library warns that the embedder, which does not have weights, is not updated by an
    # optimizer.
    logging.getLogger("PML").setLevel(logging.ERROR)
    begun = now()
    with contextlib.redirect_stderr(io.StringIO()):  # the progress bar
        trainer.train(num_epochs=1)
    return between(begun, now())


def bare_time(experiment: Experiment, shares: dict[str, float] | None = None) -> Moment:
    """Time a hand-written loop with a learning rate schedule, which reads the loss in every tenth
    step.
    """
    model, loss_function, seed = (
        experiment.model.train(),
        experiment.loss,
        experiment.recipe.training.seed,
    )
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
            group["lr"] = experiment.optimizer.lr * (1 - step / experiment.num_steps)
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", type=int, nargs="?", default=150)
    parser.add_argument("rounds", type=int, nargs="?", default=7)
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--set", nargs="*", default=[], help="changes of the recipe")
    arguments = parser.parse_args()
    steps, rounds = arguments.steps, arguments.rounds
    keep_freed_memory()
    watch = Stopwatch()
    plugins = Plugins()
    for module in (dml_core.plugin, dml_losses.plugin, dml_train.plugin):
        plugins.register(module, distribution=module.__name__.partition(".")[0])
    plugins.register(watch, distribution="stopwatch")
    registry = Registry(plugins)
    document, origin = read(
        arguments.recipe, [*arguments.set, "evaluation.name=none", "checkpoints.every=0"]
    )
    document["training"].pop("epochs", None)
    document["training"]["steps"] = steps
    recipe = parse(document, registry, origin)
    images = steps * len(build(recipe, registry).sampler.batch_at(0, 0))
    machine = platform.processor() or platform.machine()
    print(
        f"{machine}, {torch.get_num_threads()} threads, torch {torch.__version__}; recipe "
        f"{arguments.recipe}, {steps} steps a round"
    )
    logging = []

    def timed() -> Moment:
        spent, logged = trainer_time(build(recipe, registry), registry, watch)
        logging.append(logged / spent.clock)
        return spent

    loops = {
        "bare": lambda: bare_time(build(recipe, registry)),
        "dml train": timed,
        "PML": lambda: pml_time(build(recipe, registry)),
    }
    for loop in loops.values():
        loop()  # warm-up
    for first, heads, (a, b, c) in (
        ("", loops, ("dml train", "dml train", "by CPU")),
        ("round", ["images/s"] * len(loops), ("/ bare", "/ PML", "/ bare")),
    ):
        print(f"{first:<8}" + "".join(f"{head:>12}" for head in heads) + f"{a:>14}{b:>12}{c:>10}")
    ratios, faults = [], []
    for number in range(rounds):
        order = list(loops) if number % 2 == 0 else list(reversed(loops))
        spent = {name: loops[name]() for name in order}
        bare, ours, pml = (spent[name] for name in loops)
        ratios.append((bare.clock / ours.clock, pml.clock / ours.clock, bare.cpu / ours.cpu))
        faults.append([spent[name].faults / steps for name in loops])
        speeds = "".join(f"{images / spent[name].clock:>12.0f}" for name in loops)
        print(
            f"{number:<8}{speeds}" + "{:>14.3f}{:>12.3f}{:>10.3f}".format(*ratios[-1]), flush=True
        )
    medians = [statistics.median(column) for column in zip(*ratios, strict=True)]
    print(f"{'median':<44}" + "{:>14.3f}{:>12.3f}{:>10.3f}".format(*medians))
    typical = zip(loops, map(statistics.median, zip(*faults, strict=True)), strict=True)
    print("page faults a step: " + ", ".join(f"{name} {count:.0f}" for name, count in typical))
    shares: dict[str, float] = {}
    total = bare_time(build(recipe, registry), shares).clock
    print(
        "share of the clock in the bare loop: "
        + ", ".join(f"{name} {100 * seconds / total:.1f} %" for name, seconds in shares.items())
        + f"; in dml train, logging {100 * statistics.median(logging):.1f} %"
    )


if __name__ == "__main__":
    main()

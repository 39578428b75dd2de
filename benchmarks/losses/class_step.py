"""Measure the time and memory of a class loss and the optimizer; the network is not included."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch import nn

from dml_core import registry
from dml_train.recipe.tables import Recipe
from dml_train.training.optimizers import PartedOptimizer

WARM_UP, STEPS = 3, 20


def measure_class_step(recipe: Recipe, classes: int) -> tuple[float, float]:
    """Measure a recipe's loss, gradient and optimizer on random embeddings, in a new process.

    Args:
        recipe: the run's recipe; the sampler's table must contain `batch_size`.
        classes: the number of classes.

    Returns:
        The median processor time of 20 steps in milliseconds, on a single thread, and the peak
        memory in MiB for weights, optimizer, gradient and logits.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure, recipe, classes).result()


def _measure(recipe: Recipe, classes: int) -> tuple[float, float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch, dim = recipe.sampler["batch_size"], recipe.embedding.dim
    embeddings = torch.randn(batch, dim, requires_grad=True)
    # Take a step with a small loss first, so that buffers of torch aren't counted.
    _step(recipe, 2, embeddings, 1)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset the peak
    before = _peak_mebibytes()
    seconds = _step(recipe, classes, embeddings, WARM_UP + STEPS)
    return 1e3 * statistics.median(seconds[WARM_UP:]), _peak_mebibytes() - before


def _step(recipe: Recipe, classes: int, embeddings: torch.Tensor, steps: int) -> list[float]:
    """Take steps and return the processor time per step."""
    context = {
        "num_classes": classes,
        "embedding_dim": embeddings.shape[1],
        "steps_per_epoch": steps,
        "seed": 0,
    }
    loss = registry().build("losses", recipe.loss, context)
    modules = {"backbone": nn.Identity(), "head": nn.Identity(), "loss": loss}
    optimizer = PartedOptimizer(recipe.optimizer, modules).torch
    seconds = []
    for _ in range(steps):
        labels = torch.randint(classes, (len(embeddings),))
        started = time.process_time()
        optimizer.zero_grad(set_to_none=True)
        embeddings.grad = None
        loss(embeddings, labels).backward()
        optimizer.step()
        seconds.append(time.process_time() - started)
    return seconds


def _peak_mebibytes() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

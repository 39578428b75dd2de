"""Preparations before the first step: initialise class weights, and adapt batch norms to the data.

Shapes: `N` training items, `C` classes, `D` embedding dimension.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch import nn

from dml_core import draw_rows
from dml_train.data.batches import StepBatches, load_ahead
from dml_train.progress import stage
from dml_train.ranks.ranks import Ranks
from dml_train.seeds import INITIALISATION, derive
from dml_train.training.build import Experiment
from dml_train.training.class_weights import find_class_weights
from dml_train.training.replica import Replica


def initialise(
    experiment: Experiment, replica: Replica, batches: StepBatches, console: Console, ranks: Ranks
) -> None:
    """Prepare a new run as the recipe's ``[initialisation]`` says. This must be called on every
    rank.
    """
    table = experiment.recipe.initialisation
    if table.class_weights == "uniform-by-classes":
        draw_by_classes(experiment)
    if table.adapt_batch_norm:
        adapt_batch_norms(experiment, replica, batches, console)
    if table.class_weights == "class-means":
        set_to_class_means(experiment, console, ranks)
    if experiment.average is not None:
        experiment.average.module.load_state_dict(experiment.model.state_dict())


@torch.no_grad()
def draw_by_classes(experiment: Experiment) -> None:
    """Draw class weights uniformly from ±1/√C; they depend only on the run's seed."""
    seed = experiment.recipe.training.seed
    for level, own in enumerate(find_class_weights(experiment.loss)):
        generator = torch.Generator().manual_seed(derive(seed, INITIALISATION, 3, level) >> 1)
        bound = own.num_classes**-0.5
        shape = own.num_classes, own.weights.shape[1]
        draw = partial(nn.init.uniform_, a=-bound, b=bound, generator=generator)
        own.weights.copy_(draw_rows(shape, own.classes, draw))


def adapt_batch_norms(
    experiment: Experiment, replica: Replica, batches: StepBatches, console: Console
) -> None:
    """Update the statistics of batch norms with forward passes over the first batches; weights
    aren't changed.
    """
    recipe = experiment.recipe
    count = experiment.steps(recipe.initialisation.adapt_batch_norm, "epoch")
    memory_format = torch.channels_last if recipe.training.channels_last else torch.preserve_format
    pin = experiment.device.type == "cuda"
    experiment.model.train()
    with stage(console, "adapt batch norms", count) as show:
        for batch in load_ahead(batches, range(count), recipe.training.workers, pin=pin):
            replica.adapt(
                batch.images.to(experiment.device, memory_format=memory_format), batch.step
            )
            show(batch.step + 1, "")


@torch.no_grad()
def set_to_class_means(experiment: Experiment, console: Console, ranks: Ranks) -> None:
    """Set the weights of each class to the mean embedding of the class's training images, which
    aren't augmented.

    Source: the authors' code for Heated-Up Softmax, ``--better_init``, which they use on Stanford
    Online Products.
    """
    split = experiment.train
    part = experiment.embed_share(experiment.model, split, console, ranks, "embed for class means")
    means_CD = torch.from_numpy(
        class_means(ranks.all_gather(part), split.labels, len(split.class_names))
    )
    for own in find_class_weights(experiment.loss):
        own.weights.copy_(means_CD[own.classes, own.columns])


def class_means(
    embeddings: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], num_classes: int
) -> npt.NDArray[np.float32]:
    """Average embeddings (N, D) per class, in float64; return (C, D) float32."""
    sums_CD = np.zeros((num_classes, embeddings.shape[1]))
    np.add.at(sums_CD, labels, embeddings.astype(np.float64))
    counts_C1 = np.bincount(labels, minlength=num_classes)[:, None]
    return (sums_CD / counts_C1).astype(np.float32)

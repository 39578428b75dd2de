"""A rehearsal of the first step on two images, before a run creates a folder."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from dml_core import DmlError
from dml_train.data.batches import LoadFailure, load_items
from dml_train.seeds import FORWARD, LOSS, seed_torch
from dml_train.training.build import Experiment

ITEMS = 2  # a batch norm fails on a single row
_VIEWS = (
    16  # number to compare: 16 are hardly identical by chance, even if images are only mirrored
)


def rehearse(experiment: Experiment) -> None:
    """Pass a pair of training images through network, loss and backward pass, and leave the
    experiment unchanged.

    Every rank must call this function. Raise a `DmlError` with the reason if any of these fails.
    """
    split = experiment.train
    indices = np.arange(min(ITEMS, len(split)))
    images = load_items(split, indices, None)
    if isinstance(images, LoadFailure):
        raise DmlError(images.message)
    labels = torch.from_numpy(split.labels[indices])
    _check_views(experiment)
    buffers = [
        (buffer, buffer.clone()) for buffer in experiment.model.buffers()
    ]  # statistics of batch norms
    experiment.model.train()
    experiment.loss.eval()  # memories don't store these items
    try:
        _step(experiment, images.to(experiment.device), labels.to(experiment.device))
    except DmlError:
        raise
    except Exception as error:  # components may raise anything
        raise DmlError(
            f"the first step would fail: {type(error).__name__}: {error}. It was tried on "
            f"{len(indices)} training images of shape {tuple(images.shape[1:])}; correct the "
            "recipe, or the component that failed"
        ) from error
    finally:
        experiment.loss.train()
        experiment.model.zero_grad(set_to_none=True)
        experiment.loss.zero_grad(set_to_none=True)
        for buffer, before in buffers:
            buffer.copy_(before)


def _check_views(experiment: Experiment) -> None:
    """Raise a `DmlError` if the recipe asks for several views of an image, but the data set doesn't
    augment.
    """
    recipe = experiment.recipe
    if recipe.training.views == 1:
        return
    views = load_items(
        experiment.train, np.zeros(_VIEWS, np.int64), np.arange(_VIEWS, dtype=np.uint64)
    )
    if isinstance(views, LoadFailure):
        raise DmlError(views.message)
    if (views == views[0]).all():
        raise DmlError(
            f"training.views is {recipe.training.views}, but the data set "
            f"{recipe.dataset['name']!r} gives identical views of an image; expected views = 1, or "
            "augmentation, such as dataset.augment = ['RandAugment']"
        )


def check_value(loss: nn.Module, value: object) -> Tensor:
    """Return the value of a loss if it is a scalar tensor; otherwise raise a `DmlError`."""
    if isinstance(value, Tensor) and not value.dim():
        return value
    returned = (
        f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    )
    raise DmlError(
        f"{type(loss).__name__} returned {returned}; expected a scalar tensor: return the mean "
        "over the batch"
    )


def _step(experiment: Experiment, images: Tensor, labels: Tensor) -> None:
    device, precision, seed = (
        experiment.device,
        experiment.precision,
        experiment.recipe.training.seed,
    )
    seed_torch(device, seed, FORWARD, 0)
    with torch.autocast(device.type, precision, precision != torch.float32):
        embeddings = experiment.model(images)
    seed_torch(device, seed, LOSS, 0)
    value = check_value(experiment.loss, experiment.loss(embeddings, labels))
    if value.requires_grad:
        torch.autograd.backward(value)

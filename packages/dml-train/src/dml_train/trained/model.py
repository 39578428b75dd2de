"""A trained network, opened for use: it needs neither the data, nor the loss and sampler, of its training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dml_core import Dataset, DmlError, ImageReader, ImageReadingFactory, Registry, Split
from dml_train.networks.model import EmbeddingModel
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.training.build import PRECISIONS, build_model, find_device
from dml_train.training.checkpoint import WEIGHTS
from dml_train.training.run import evaluated_checkpoint, read_recipe


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """The network of a run with the weights that the run is measured by, in evaluation mode.

    Args:
        folder: the run's.
        recipe: as resolved.
        step: optimizer steps that the weights have seen.
        weights: the SHA-256 of their file.
        model: images to embeddings.
        device: where it is.
        input_shape: channels, height and width of an image.
        reader: from files to its input; None where the data set of the run can't say.
    """

    folder: RunFolder
    recipe: Recipe
    step: int
    weights: str
    model: EmbeddingModel
    device: torch.device
    input_shape: tuple[int, int, int]
    reader: ImageReader | None

    @property
    def precision(self) -> torch.dtype:
        """What the network computes in."""
        return PRECISIONS[self.recipe.training.precision]

    def split_of(self, files: Sequence[Path]) -> Split:
        """Images as the network wants them.

        Raises:
            DmlError: if the run's data set can't say how.
        """
        if self.reader is None:
            raise DmlError(
                f"the data set {self.recipe.dataset['name']!r} of the run in {self.folder.path} doesn't say how image "
                "files become the network's input: its factory has no attribute 'image_reader'. "
                "Embed one of its own splits with --split"
            )
        return self.reader.of_files(files)


def open_model(path: Path, registry: Registry) -> TrainedModel:
    """The trained network of a run.

    Only a data set without an ``image_reader`` is made, and has to be there.

    Raises:
        DmlError: if it isn't a run's folder, has no whole checkpoint, or needs what isn't installed.
    """
    folder = RunFolder.open(path)
    recipe = read_recipe(folder, registry)
    used = evaluated_checkpoint(folder)
    options = {key: value for key, value in recipe.dataset.items() if key != "name"}
    factory = registry.entry("datasets", recipe.dataset["name"]).component.factory
    reader: ImageReader | None = None
    if isinstance(factory, ImageReadingFactory):
        reader = factory.image_reader(**options)
        in_channels, input_shape = reader.in_channels, reader.input_shape
    else:
        dataset: Dataset = registry.build("datasets", recipe.dataset, {"seed": recipe.training.seed})
        channels, height, width = dataset.test.load(np.zeros(1, dtype=np.int64))[0].shape
        in_channels, input_shape = dataset.in_channels, (channels, height, width)
    device = find_device(recipe.training.device)
    model = build_model(recipe, in_channels, registry, device, pretrained=False)
    model.load_state_dict(used.weights())
    with (used.path / WEIGHTS).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return TrainedModel(folder, recipe, used.step, digest, model.eval(), device, input_shape, reader)

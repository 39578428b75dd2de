"""A trained network, opened for use: it needs neither the data nor the loss and sampler of its training."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml_core import DmlError, ImageReader, ImageReadingFactory, Registry, Split, StoredImage
from dml_core import registry as installed
from dml_train.data.decoding import ImageSource
from dml_train.measure.embed import CHUNK_SIZE, EmbeddedChunk, ImageChunks, embed, embed_chunks, forward
from dml_train.networks.model import EmbeddingModel
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.training.build import PRECISIONS, build_dataset, build_model, find_device
from dml_train.training.checkpoint import WEIGHTS, read_manifest
from dml_train.training.run import evaluated_checkpoint, read_recipe


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """The network of a run with the weights that the run is evaluated by, in evaluation mode."""

    folder: RunFolder  # the run's folder
    recipe: Recipe  # the run's recipe, as resolved
    step: int  # number of optimizer steps that the weights have seen
    weights: str  # the SHA-256 of the weights file
    network: EmbeddingModel  # images to embeddings
    device: torch.device  # the network's device
    input_shape: tuple[int, int, int]  # channels, height and width of an image
    # Prepares image files for the network; None if the run's data set doesn't say how.
    reader: ImageReader | None

    @property
    def dim(self) -> int:
        """The embedding dimension."""
        return self.network.head.embedding_dim

    @property
    def precision(self) -> torch.dtype:
        """The precision in which the network computes."""
        return PRECISIONS[self.recipe.training.precision]

    def embed(self, inputs: Tensor | npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Embed prepared network inputs, (N, D) float32.

        Args:
            inputs: (N, channels, height, width) float32, prepared as `reader.describe` says, N at least 1.

        Raises:
            DmlError: another shape than `input_shape`, or an embedding that isn't finite.
        """
        tensor = torch.as_tensor(inputs)
        if tensor.ndim != 4 or tensor.shape[1:] != self.input_shape or not len(tensor):
            raise DmlError(
                f"inputs has shape {tuple(tensor.shape)}; expected (N, {', '.join(map(str, self.input_shape))}) with "
                "N at least 1"
            )
        chunks = torch.split(tensor.float(), CHUNK_SIZE)
        parts = [forward(self.network, chunk, self.device, self.precision) for chunk in chunks]
        embeddings_ND = np.concatenate(parts)
        if not (finite := np.isfinite(embeddings_ND).all(axis=1)).all():
            raise DmlError(f"the embedding of input {int(finite.argmin())} isn't finite; check that input")
        return embeddings_ND

    def embed_images(
        self, images: Sequence[str | Path | StoredImage | npt.NDArray[np.uint8]], *, workers: int = 0
    ) -> npt.NDArray[np.float32]:
        """Decode, prepare and embed images, (N, D) float32.

        Args:
            images: N image files, images inside files, or arrays (height, width, 3) of RGB or (height, width) of grey
                values, at least 1.
            workers: number of processes that load ahead.

        Raises:
            DmlError: no image, one that can't be decoded, an embedding that isn't finite, or a run whose data set
                doesn't say how images are prepared.
        """
        if not len(images):
            raise DmlError("images is empty; expected at least one")
        sources = [Path(image) if isinstance(image, str) else image for image in images]
        return embed(
            self.network,
            self.split_of(sources),
            device=self.device,
            precision=self.precision,
            workers=workers,
            names=_names(sources),
        )

    def embed_chunks(self, source: ImageChunks, *, workers: int = 0) -> Generator[EmbeddedChunk, None, None]:
        """Embed images, one forward pass for each chunk; see `dml_train.measure.embed.embed_chunks`."""
        return embed_chunks(
            self.network, source, device=self.device, precision=self.precision, workers=workers
        )

    def chunks_of(
        self, images: Sequence[ImageSource], chunks: Sequence[npt.NDArray[np.int64]]
    ) -> ImageChunks:
        """Return images in chunks, each the indices of its images; raises as `split_of`."""
        return ImageChunks(self.split_of(images), chunks, _names(images))

    def split_of(self, images: Sequence[ImageSource]) -> Split:
        """Return the images as a split, prepared for the network; raise DmlError without a reader."""
        if self.reader is None:
            raise DmlError(
                f"the data set {self.recipe.dataset['name']!r} of the run in {self.folder.path} doesn't say how image "
                "files become the network's input: its factory has no attribute 'image_reader'. "
                "Embed one of the data set's own splits instead",
                arguments=("split",),
            )
        return self.reader.of_images(images)


def _names(images: Sequence[ImageSource]) -> list[object]:
    """Name images for messages."""

    def name(number: int, image: ImageSource) -> object:
        if isinstance(image, np.ndarray):
            return f"image {number}"
        return image if isinstance(image, Path) else image.name

    return [name(number, image) for number, image in enumerate(images)]


def open_model(
    run_dir: Path | str, registry: Registry | None = None, *, step: int | None = None
) -> TrainedModel:
    """Open the trained network of a run.

    Only a data set without an ``image_reader`` is built, and must still exist.

    Args:
        run_dir: the run's folder.
        registry: provides backbones and data sets; default: all installed ones.
        step: use the weights of this step's checkpoint; default: those that the run is evaluated by.

    Raises:
        DmlError: if it isn't a run's folder, its checkpoint is missing or damaged, or it needs a component that isn't
            installed.
    """
    registry = registry or installed()
    folder = RunFolder.open(Path(run_dir))
    recipe = read_recipe(folder, registry)
    used = evaluated_checkpoint(folder, step)
    options = {key: value for key, value in recipe.dataset.items() if key != "name"}
    factory = registry.entry("datasets", recipe.dataset["name"]).component.factory
    reader: ImageReader | None = None
    if isinstance(factory, ImageReadingFactory):
        reader = factory.image_reader(**options)
        in_channels, input_shape = reader.in_channels, reader.input_shape
    else:
        dataset = build_dataset(recipe, registry)
        channels, height, width = dataset.test.load(np.zeros(1, dtype=np.int64))[0].shape
        in_channels, input_shape = dataset.in_channels, (channels, height, width)
    device = find_device(recipe.training.device)
    network = build_model(recipe, in_channels, registry, device, pretrained=False)
    used.load_into(network)
    digest = read_manifest(used.path)[WEIGHTS]["sha256"]
    return TrainedModel(folder, recipe, used.step, digest, network.eval(), device, input_shape, reader)

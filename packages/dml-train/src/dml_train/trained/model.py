"""A trained network, opened for use. Neither the training data nor the loss and the sampler are
needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml_core import DmlError, ImageReader, ImageReadingFactory, Registry, Split, StoredImage
from dml_core import registry as installed
from dml_train.checksums import sha256_of
from dml_train.data.decoding import ImageSource
from dml_train.measure.embed import (
    CHUNK_SIZE,
    EmbeddedChunk,
    ImageChunks,
    embed,
    embed_chunks,
    forward,
)
from dml_train.networks.model import EmbeddingModel
from dml_train.recipe.checking import parse
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.trained.hub import CONFIG, find_hub_folder, load_hub_weights, read_config
from dml_train.trained.whitening import read_whitening
from dml_train.training.build import PRECISIONS, build_dataset, build_model, find_device
from dml_train.training.checkpoint import WEIGHTS, read_manifest
from dml_train.training.run import evaluated_checkpoint, read_recipe


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A run's network in evaluation mode, with the weights that the run is evaluated by."""

    folder: RunFolder  # the run's folder
    recipe: Recipe  # the run's recipe, as resolved
    step: int  # number of optimizer steps before these weights were saved
    weights: str  # the SHA-256 of the weights file, or of this file and the whitening
    network: EmbeddingModel  # images to embeddings
    device: torch.device  # the network's device
    input_shape: tuple[int, int, int]  # channels, height and width of images
    # Prepares image files for the network; None if the run's data set doesn't say how.
    reader: ImageReader | None

    @property
    def dim(self) -> int:
        """The embedding dimension."""
        return self.network.embedding_dim

    @property
    def precision(self) -> torch.dtype:
        """The data type that the network computes with."""
        return PRECISIONS[self.recipe.training.precision]

    def embed(self, inputs: Tensor | npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Embed N >= 1 network inputs, float32 of shape ``(N, *input_shape)``, prepared as
        `reader.describe` says.

        Return (N, D) float32. Raise DmlError if the inputs have a different shape, or an embedding
        is not finite.
        """
        tensor = torch.as_tensor(inputs)
        if tensor.ndim != 4 or tensor.shape[1:] != self.input_shape or not len(tensor):
            raise DmlError(
                f"inputs has shape {tuple(tensor.shape)}; expected (N, "
                f"{', '.join(map(str, self.input_shape))}) with N at least 1"
            )
        chunks = torch.split(tensor.float(), CHUNK_SIZE)
        parts = [forward(self.network, chunk, self.device, self.precision) for chunk in chunks]
        embeddings_ND = np.concatenate(parts)
        if not (finite := np.isfinite(embeddings_ND).all(axis=1)).all():
            raise DmlError(
                f"the embedding of input {int(finite.argmin())} isn't finite; check that input"
            )
        return embeddings_ND

    def embed_images(
        self,
        images: Sequence[str | Path | StoredImage | npt.NDArray[np.uint8]],
        *,
        workers: int = 0,
    ) -> npt.NDArray[np.float32]:
        """Decode, prepare and embed N >= 1 images, (N, D) float32; `workers` processes load ahead.

        Images can be files, images inside files, RGB arrays (height, width, 3) or grey arrays
        (height, width). Raise DmlError if images are missing, an image can't be decoded, an
        embedding isn't finite, or the run's data set doesn't say how to prepare images.
        """
        if not len(images):
            raise DmlError("images is empty; expected at least one image")
        sources = [Path(image) if isinstance(image, str) else image for image in images]
        return embed(
            self.network,
            self.split_of(sources),
            device=self.device,
            precision=self.precision,
            workers=workers,
            names=_names(sources),
        )

    def embed_chunks(
        self, source: ImageChunks, *, workers: int = 0
    ) -> Generator[EmbeddedChunk, None, None]:
        """Embed images with a forward pass per chunk; see
        `dml_train.measure.embed.embed_chunks`.
        """
        return embed_chunks(
            self.network, source, device=self.device, precision=self.precision, workers=workers
        )

    def chunks_of(
        self, images: Sequence[ImageSource], items: Sequence[npt.NDArray[np.int64]]
    ) -> ImageChunks:
        """Divide images into chunks of these items; see `split_of` for the error."""
        return ImageChunks(self.split_of(images), items, _names(images))

    def split_of(self, images: Sequence[ImageSource]) -> Split:
        """Return a split that prepares these images for the network; raise DmlError if a reader
        isn't defined.
        """
        if self.reader is None:
            raise DmlError(
                f"the data set {self.recipe.dataset['name']!r} of the run in {self.folder.path} "
                "doesn't say how to prepare image files: its factory has no attribute "
                "'image_reader'. Embed a split of the data set instead",
                arguments=("split",),
            )
        return self.reader.of_images(images)


def _names(images: Sequence[ImageSource]) -> list[object]:
    """Return names of images for messages."""
    names: list[object] = []
    for number, image in enumerate(images):
        if isinstance(image, np.ndarray):
            names.append(f"image {number}")
        else:
            names.append(image if isinstance(image, Path) else image.name)
    return names


def open_model(
    run_dir: Path | str,
    registry: Registry | None = None,
    *,
    step: int | None = None,
    whitened: bool = True,
) -> TrainedModel:
    """Open a trained network, with the whitening if ``dml eval --whiten`` has learned it for these
    weights.

    The data set is only used if it does not define an ``image_reader``. Raise DmlError if `run_dir`
    isn't a run's folder, the checkpoint is missing or damaged, or a component isn't installed.

    Args:
        run_dir: the run's folder; or a folder written by ``dml export --to hub``; or the name on
            the Hugging Face Hub, ``"hf:OWNER/NAME"`` or ``"hf:OWNER/NAME@REVISION"``, which needs
            ``dml-train[hf]``.
        registry: provides backbones and data sets; default: all installed ones.
        step: use the weights of this step's checkpoint; by default, use the weights that the run is
            evaluated by.
        whitened: whether to apply the whitening.
    """
    registry = registry or installed()
    if (shared := find_hub_folder(run_dir)) is not None:
        if step is not None:
            raise DmlError(f"{run_dir} has the weights of a single step", arguments=("step",))
        return _open_shared(shared, registry)
    folder = RunFolder.open(Path(run_dir))
    recipe = read_recipe(folder, registry)
    used = evaluated_checkpoint(folder, step)
    reader = _make_reader(recipe, registry)
    if reader is not None:
        in_channels, input_shape = reader.in_channels, reader.input_shape
    else:
        dataset = build_dataset(recipe, registry)
        channels, height, width = dataset.test.load(np.zeros(1, dtype=np.int64))[0].shape
        in_channels, input_shape = dataset.in_channels, (channels, height, width)
    device = find_device(recipe.training.device)
    network = build_model(recipe, in_channels, registry, device, pretrained=False)
    used.load_into(network)
    digest = read_manifest(used.path)[WEIGHTS]["sha256"]
    if whitened and (stored := read_whitening(folder, digest)) is not None:
        network.whitening = stored.to(device)
        digest = hashlib.sha256(digest.encode() + folder.whitening.read_bytes()).hexdigest()
    return TrainedModel(
        folder, recipe, used.step, digest, network.eval(), device, input_shape, reader
    )


def _open_shared(folder: Path, registry: Registry) -> TrainedModel:
    """Open a folder that `write_hub_folder` wrote."""
    config = read_config(folder)
    recipe = parse(config["recipe"], registry, str(folder / CONFIG))
    channels, height, width = config["input_shape"]
    device = find_device(recipe.training.device)
    network = build_model(recipe, channels, registry, device, pretrained=False)
    load_hub_weights(folder, network)
    shape, digest, reader = (
        (channels, height, width),
        sha256_of(folder / WEIGHTS),
        _make_reader(recipe, registry),
    )
    return TrainedModel(
        RunFolder(folder),
        recipe,
        config["step"],
        digest,
        network.to(device).eval(),
        device,
        shape,
        reader,
    )


def _make_reader(recipe: Recipe, registry: Registry) -> ImageReader | None:
    """Return the reader that prepares image files like the data set; None if the data set doesn't
    define one.
    """
    options = {key: value for key, value in recipe.dataset.items() if key != "name"}
    factory = registry.entry("datasets", recipe.dataset["name"]).component.factory
    return factory.image_reader(**options) if isinstance(factory, ImageReadingFactory) else None

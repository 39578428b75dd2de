"""A trained network for the workers of other frameworks, such as Ray Data.

Shapes: `B` images of a batch, `D` embedding dimension.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dml_core import DmlError, Registry
from dml_train.data.decoding import ImageSource
from dml_train.trained.model import TrainedModel, open_model

# The first of these columns in a batch contains the images.
_COLUMNS = ("image", "bytes", "jpg", "jpeg", "png", "webp", "path")


@dataclass(eq=False)
class Embedder:
    """A function that embeds batches. Every process opens the run when it receives the first batch.

    For example, use ``dataset.map_batches(Embedder, fn_constructor_args=["runs/mine"],
    batch_size=256, concurrency=4)`` with a Ray data set that ``ray.data.read_images``,
    ``read_binary_files``, ``read_parquet`` or ``read_webdataset(decode=False)`` returns. The last
    bits of an embedding depend on the other images in the batch. To decode large JPEGs in reduced
    size, as `embed_folder` does, pass paths or encoded images instead of arrays.
    """

    run: str | Path  # the run's folder, which must be visible to all workers
    _: KW_ONLY
    # The column of images: paths, encoded images (bytes), dictionaries with ``bytes`` as in Hugging
    # Face data sets, or RGB arrays (height, width, 3); by default, the first of image, bytes, jpg,
    # jpeg, png, webp and path.
    column: str | None = None
    skip: bool = (
        False  # whether to drop rows of images that can't be decoded, instead of raising an error
    )
    threads: int | None = None  # number of threads for torch; by default, not changed
    step: int | None = None  # see `open_model`
    registry: Registry | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "model"}

    @cached_property
    def model(self) -> TrainedModel:
        """The run's network, opened on first use."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        return open_model(self.run, self.registry, step=self.step)

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Add the column ``embedding``, (B, D) float32, to a batch of columns; `skip` drops rows
        with bad images.

        Raise DmlError if columns don't contain images or, unless `skip` is true, an image can't be
        decoded.
        """
        column = self.column or next((name for name in _COLUMNS if name in batch), None)
        if column is None or column not in batch:
            raise DmlError(
                f"a batch contains the columns {', '.join(batch)}; expected images in "
                f"{column or 'one of: ' + ', '.join(_COLUMNS)}"
            )
        names = batch.get("path", batch.get("__key__", ()))
        images = [
            _as_source(cell, str(names[row]) if row < len(names) else f"row {row} of a batch")
            for row, cell in enumerate(batch[column])
        ]
        (embedded,) = self.model.embed_chunks(
            self.model.chunks_of(images, [np.arange(len(images))])
        )
        if embedded.bad and not self.skip:
            raise DmlError(f"{embedded.bad[0].reason}; or skip such images", arguments=("skip",))
        kept = np.delete(np.arange(len(images)), [image.position for image in embedded.bad])
        columns: dict[str, Any] = dict(batch)
        if embedded.bad:
            for name, values in columns.items():
                is_array = isinstance(values, np.ndarray)
                columns[name] = values[kept] if is_array else [values[row] for row in kept]
        return {**columns, "embedding": embedded.embeddings}


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """A `StoredImage` in memory: the name for messages, and the content."""

    name: str
    content: bytes

    def read(self) -> bytes:
        """Return the encoded image."""
        return self.content


def _as_source(cell: Any, name: str) -> ImageSource:
    if isinstance(cell, str | Path):
        return Path(cell)
    if isinstance(cell, Mapping):
        cell = cell.get("bytes")
    if isinstance(cell, io.IOBase):
        cell = cell.read()
    if isinstance(cell, bytes | memoryview):
        return EncodedImage(name, bytes(cell))
    if isinstance(cell, np.ndarray) and cell.dtype == np.uint8 and cell.ndim in (2, 3):
        return cell
    raise DmlError(
        f"{name} is {type(cell).__name__}; expected a path, encoded image (bytes), or uint8 array"
    )

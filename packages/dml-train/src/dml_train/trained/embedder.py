"""A trained network for the workers of other frameworks, such as Ray Data.

Shapes: `B` images of a batch, `D` embedding dimension.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dml_core import DmlError, Registry
from dml_train.data.decoding import ImageSource
from dml_train.trained.model import TrainedModel, open_model

# The first of these columns in a batch contains the images.
_COLUMNS = ("image", "bytes", "jpg", "jpeg", "png", "webp", "path")


class Embedder:
    """A function that embeds batches. Each process opens the run when it receives the first batch.

    For example, use ``dataset.map_batches(Embedder, fn_constructor_args=["runs/mine"], batch_size=256, concurrency=4)``
    with a Ray data set that ``ray.data.read_images``, ``read_binary_files``, ``read_parquet`` or
    ``read_webdataset(decode=False)`` returns. The last bits of an embedding depend on the other images in the batch. To
    get the embeddings of `embed_folder`, pass paths or encoded images: this class decodes large JPEGs at reduced size.

    Args:
        run: the run's folder, which all workers must see.
        column: the column of images: paths, encoded images (bytes), dictionaries with ``bytes`` (as in Hugging Face
            data sets), or RGB arrays (height, width, 3); default: the first of image, bytes, jpg, jpeg, png, webp and
            path.
        skip: whether to drop the rows of images that can't be decoded, instead of raising an error.
        threads: number of threads for torch; default: unchanged.
        step, registry: see `open_model`.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        column: str | None = None,
        skip: bool = False,
        threads: int | None = None,
        step: int | None = None,
        registry: Registry | None = None,
    ) -> None:
        self.run, self.column, self.skip, self.threads, self.step = Path(run), column, skip, threads, step
        self._registry = registry
        self._model: TrainedModel | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_model": None}

    @property
    def model(self) -> TrainedModel:
        """The run's network, opened at first use."""
        if self._model is None:
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            self._model = open_model(self.run, self._registry, step=self.step)
        return self._model

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Add the column ``embedding``, (B, D) float32, to a batch of columns; `skip` drops rows with bad images.

        Raise DmlError if no column contains images or, unless `skip` is true, an image can't be decoded.
        """
        column = self.column or next((name for name in _COLUMNS if name in batch), None)
        if column is None or column not in batch:
            raise DmlError(
                f"a batch has the columns {', '.join(batch)}; expected images in "
                f"{column or 'one of: ' + ', '.join(_COLUMNS)}"
            )
        names = batch.get("path", batch.get("__key__", ()))
        images = [
            _as_source(cell, str(names[row]) if row < len(names) else f"row {row} of a batch")
            for row, cell in enumerate(batch[column])
        ]
        (embedded,) = self.model.embed_chunks(self.model.chunks_of(images, [np.arange(len(images))]))
        if embedded.bad and not self.skip:
            raise DmlError(f"{embedded.bad[0].reason}; or skip such images", arguments=("skip",))
        kept = np.delete(np.arange(len(images)), [image.position for image in embedded.bad])
        columns = {name: _select(values, kept) for name, values in batch.items()}
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
        f"{name} is {type(cell).__name__}; expected a path, an encoded image (bytes), or an array of uint8"
    )


def _select(values: Any, kept: npt.NDArray[np.int64]) -> Any:
    if len(kept) == len(values):
        return values
    return values[kept] if isinstance(values, np.ndarray) else [values[row] for row in kept]

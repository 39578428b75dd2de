"""A plan to embed images chunk by chunk: which images share a forward pass, and what their rows depend on.

The last bits of an embedding depend on the images of its forward pass. So work is divided into chunks, never into
images, and every division of a plan's chunks gives the same bits.

Shapes: `B` images of one chunk, `D` embedding dimension.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dml_core import DmlError
from dml_train.measure.chunks import CHUNK_SIZE, BadImage, ImageChunks
from dml_train.measure.embed import embed_chunks
from dml_train.measure.evaluate import pack_codes
from dml_train.trained.images import ImageList
from dml_train.trained.model import TrainedModel


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """The result of a chunk.

    Args:
        chunk: its number.
        rows: of its images in their order, without the bad ones: (B, D) float32, or codes.
        bad: its images that can't be decoded.
    """

    chunk: int
    rows: npt.NDArray[Any]
    bad: Sequence[BadImage]


@dataclass(frozen=True, slots=True)
class EmbeddingPlan:
    """Images, the network that embeds them, and the kind of its rows.

    Args:
        model: embeds the images.
        images: the images.
        codes: whether a row is packed binary codes, (ceil(D / 8),) uint8, instead of (D,) float32.
        chunk_size: images of a forward pass.
    """

    model: TrainedModel
    images: ImageList
    codes: bool = False
    chunk_size: int = CHUNK_SIZE

    def __len__(self) -> int:
        """Return the number of chunks."""
        return -(-len(self.images.names) // self.chunk_size)

    def items(self, chunk: int) -> range:
        """Return the images of a chunk."""
        begin = chunk * self.chunk_size
        return range(begin, min(begin + self.chunk_size, len(self.images.names)))

    def count(self, chunks: Iterable[int]) -> int:
        """Count the images of some chunks."""
        return sum(len(self.items(chunk)) for chunk in chunks)

    @property
    def width(self) -> int:
        """The number of entries of a row."""
        return -(-self.model.dim // 8) if self.codes else self.model.dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a row's entries."""
        return np.dtype(np.uint8 if self.codes else np.float32)

    @property
    def made_by(self) -> dict[str, Any]:
        """What all rows depend on beside the images, in JSON's types."""
        recipe = self.model.recipe
        return {
            "weights": self.model.weights,
            "dataset": recipe.dataset,
            "precision": recipe.training.precision,
            "kind": "codes" if self.codes else "float32",
            "chunk_size": self.chunk_size,
        }

    def key(self, chunk: int) -> str:
        """Return a digest of all that a chunk's rows depend on."""
        digest = hashlib.sha256(json.dumps(self.made_by, sort_keys=True).encode())
        for item in self.items(chunk):
            digest.update(self.images.state(item) + b"\0")
        return digest.hexdigest()


class Engine(Protocol):
    """A way to embed chunks: in this process, or on other machines."""

    def __call__(
        self, plan: EmbeddingPlan, chunks: Sequence[int], *, skip: bool
    ) -> Generator[ChunkRows, None, None]:
        """Embed chunks of a plan, in any order.

        Args:
            plan: the plan.
            chunks: the numbers of the chunks.
            skip: whether to omit images that can't be decoded; otherwise they are an error.

        Raises:
            DmlError: if an image can't be decoded, or an embedding isn't finite.
        """
        ...


@dataclass(frozen=True, slots=True)
class ThisProcess:
    """The engine of one process, with loader processes.

    Args:
        workers: number of processes that load ahead.
    """

    workers: int = 0

    def __call__(
        self, plan: EmbeddingPlan, chunks: Sequence[int], *, skip: bool
    ) -> Generator[ChunkRows, None, None]:
        """Embed chunks of a plan in their order; see `Engine`."""
        model = plan.model
        items = [np.arange(part.start, part.stop) for part in map(plan.items, chunks)]
        source = ImageChunks(plan.images.split(model), items, names=plan.images.shown)
        with closing(
            embed_chunks(
                model.network, source, device=model.device, precision=model.precision, workers=self.workers
            )
        ) as embedded_chunks:
            for chunk, embedded in zip(chunks, embedded_chunks):
                refuse_bad(embedded.bad, skip)
                rows = pack_codes(embedded.embeddings) if plan.codes else embedded.embeddings
                yield ChunkRows(chunk, rows, embedded.bad)


def refuse_bad(bad: Sequence[BadImage], skip: bool) -> None:
    """Refuse a chunk's bad images, unless `skip`.

    Raises:
        DmlError: that names the first one.
    """
    if bad and not skip:
        raise DmlError(f"{bad[0].reason}; or skip such images", arguments=("skip",))

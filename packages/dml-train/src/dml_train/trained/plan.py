"""A plan to embed images chunk by chunk: which images share a forward pass, and what their rows depend on.

The last bits of an embedding depend on the images of its forward pass. So work is divided into chunks, never into
images, and every division of a plan's chunks gives the same bits.

Shapes: `N` images that can be decoded, `B` images of one chunk, `D` embedding dimension.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_core import DmlError
from dml_train.measure.embed import CHUNK_SIZE, BadImage
from dml_train.measure.evaluate import pack_codes
from dml_train.progress import stage
from dml_train.trained.images import ImageList
from dml_train.trained.model import TrainedModel


class ChunkRows(NamedTuple):
    """The result of a chunk."""

    chunk: int  # its number
    rows: npt.NDArray[Any]  # (B, D) float32, or codes: of its images in their order, without the bad ones
    bad: Sequence[BadImage]


@dataclass(frozen=True, slots=True)
class EmbeddingPlan:
    """Images, the network that embeds them, and the kind of its rows."""

    model: TrainedModel  # embeds the images
    images: ImageList  # the images
    codes: bool = False  # whether a row is packed binary codes, (ceil(D / 8),) uint8, instead of (D,) float32
    chunk_size: int = CHUNK_SIZE  # images of a forward pass

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
        """Entries per row."""
        return -(-self.model.dim // 8) if self.codes else self.model.dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a row's entries."""
        return np.dtype(np.uint8 if self.codes else np.float32)

    @property
    def made_by(self) -> dict[str, Any]:
        """What all rows depend on in addition to the images, in JSON's types."""
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
        return digest([json.dumps(self.made_by, sort_keys=True), *self.images.states(self.items(chunk))])

    def names(self, chunk: int, bad: Sequence[BadImage]) -> tuple[list[str], list[tuple[str, str]]]:
        """Return the names of a chunk's rows, and name and reason of each bad image."""
        names = [self.images.names[item] for item in self.items(chunk)]
        reasons = dict(bad)
        kept = [name for position, name in enumerate(names) if position not in reasons]
        return kept, [(names[position], reason) for position, reason in reasons.items()]


# A way to embed chunks, in any order: in this process (`ThisProcess`), or on other machines (`RayEngine`).
Engine = Callable[[EmbeddingPlan, Sequence[int]], Generator[ChunkRows, None, None]]


@dataclass(frozen=True, slots=True)
class ThisProcess:
    """The engine of one process."""

    workers: int = 0  # processes that load ahead

    def __call__(self, plan: EmbeddingPlan, chunks: Sequence[int]) -> Generator[ChunkRows, None, None]:
        """Embed chunks of a plan in their order."""
        source = plan.images.chunks(plan.model, [plan.items(chunk) for chunk in chunks])
        with closing(plan.model.embed_chunks(source, workers=self.workers)) as embedded_chunks:
            for embedded, chunk in zip(embedded_chunks, chunks):
                rows = pack_codes(embedded.embeddings) if plan.codes else embedded.embeddings
                yield ChunkRows(chunk, rows, embedded.bad)


def embed_chunks(
    plan: EmbeddingPlan,
    chunks: Sequence[int],
    engine: Engine,
    *,
    skip: bool,
    console: Console | None,
    done: int = 0,
) -> Generator[ChunkRows, None, None]:
    """Embed chunks of a plan by an engine, in any order, and show the progress on the console, if there is one.

    An earlier call has embedded `done` images. Raise DmlError if an embedding isn't finite or, unless `skip`, an image
    can't be decoded.
    """
    if not chunks:
        return
    with (
        stage(console, "embed", done + plan.count(chunks), done=done) as show,
        closing(engine(plan, chunks)) as results,
    ):
        for result in results:
            if result.bad and not skip:
                reason = result.bad[0].reason
                if plan.images.split is not None:  # an item for each of its labels
                    raise DmlError(reason)
                raise DmlError(f"{reason}; or skip such images", arguments=("skip",))
            yield result
            done += len(plan.items(result.chunk))
            show(done, "")


class EmbeddedImages(NamedTuple):
    """Embedded images in memory."""

    rows: npt.NDArray[Any]  # (N, D) float32, or codes
    paths: Sequence[str]  # (N,) the names of the rows
    skipped: Sequence[tuple[str, str]]  # name and reason of each omitted image


def embed_in_memory(
    plan: EmbeddingPlan, *, skip: bool = False, workers: int = 0, console: Console | None = None
) -> EmbeddedImages:
    """Embed all images of a plan in this process; raises as `embed_chunks`, and if no image can be decoded."""
    rows, kept, skipped = list[npt.NDArray[Any]](), list[str](), list[tuple[str, str]]()
    engine = ThisProcess(workers)
    with closing(embed_chunks(plan, range(len(plan)), engine, skip=skip, console=console)) as chunks:
        for chunk in chunks:
            names, omitted = plan.names(chunk.chunk, chunk.bad)
            rows.append(chunk.rows)
            kept += names
            skipped += omitted
    refuse_none(plan, kept, skipped)
    return EmbeddedImages(np.concatenate(rows), kept, skipped)


def refuse_none(plan: EmbeddingPlan, kept: Sequence[str], skipped: Sequence[tuple[str, str]]) -> None:
    """Raise DmlError if no image of a plan could be decoded."""
    if not kept:
        raise DmlError(
            f"none of the {len(plan.images.names)} images in {plan.images.title} can be decoded; "
            f"e.g. {skipped[0][1]}"
        )


def digest(texts: Iterable[str]) -> str:
    """Return the SHA-256 of texts; names that aren't UTF-8 keep their bytes."""
    sha256 = hashlib.sha256()
    for text in texts:
        sha256.update(text.encode(errors="surrogateescape") + b"\0")
    return sha256.hexdigest()

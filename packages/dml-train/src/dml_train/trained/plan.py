"""A plan to embed images chunk by chunk: which images share a forward pass, and which values rows
depend on.

The last bits of an embedding depend on the other images in the forward pass. Therefore processes
and machines share the work by chunks and not by images: the bits don't depend on the number of
processes.

Shapes: `N` images that can be decoded, `B` images of a chunk, `D` embedding dimension.
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
    """The rows of a chunk's images in order, excluding the bad images."""

    chunk: int  # the number of the chunk
    rows: npt.NDArray[Any]  # (B, D) float32, or codes
    bad: Sequence[BadImage]


@dataclass(frozen=True, slots=True)
class EmbeddingPlan:
    """Images to embed, the network that embeds the images, and the format of the rows."""

    model: TrainedModel
    images: ImageList
    codes: bool = (
        False  # whether rows are packed binary codes, (ceil(D / 8),) uint8, instead of (D,) float32
    )
    chunk_size: int = CHUNK_SIZE  # images per forward pass

    def __len__(self) -> int:
        """Return the number of chunks."""
        return -(-len(self.images.names) // self.chunk_size)

    def items(self, chunk: int) -> range:
        """Return the indices of a chunk's images."""
        begin = chunk * self.chunk_size
        return range(begin, min(begin + self.chunk_size, len(self.images.names)))

    def count(self, chunks: Iterable[int]) -> int:
        """Count the images in these chunks."""
        return sum(len(self.items(chunk)) for chunk in chunks)

    @property
    def width(self) -> int:
        """The number of entries per row."""
        return -(-self.model.dim // 8) if self.codes else self.model.dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a row's entries."""
        return np.dtype(np.uint8 if self.codes else np.float32)

    @property
    def made_by(self) -> dict[str, Any]:
        """The settings, in JSON's types, that change all rows: rows with different settings must
        not be joined.
        """
        recipe = self.model.recipe
        return {
            "weights": self.model.weights,
            "dataset": recipe.dataset,
            "precision": recipe.training.precision,
            "kind": "codes" if self.codes else "float32",
            "chunk_size": self.chunk_size,
        }

    def key(self, chunk: int) -> str:
        """Return a digest that changes whenever the rows of this chunk would change."""
        return digest(
            [json.dumps(self.made_by, sort_keys=True), *self.images.states(self.items(chunk))]
        )

    def names(self, chunk: int, bad: Sequence[BadImage]) -> tuple[list[str], list[tuple[str, str]]]:
        """Return the names of a chunk's rows, and the names and reasons for bad images."""
        names = [self.images.names[item] for item in self.items(chunk)]
        reasons = dict(bad)
        kept = [name for position, name in enumerate(names) if position not in reasons]
        return kept, [(names[position], reason) for position, reason in reasons.items()]

    def check_decoded(self, done: FolderEmbedding) -> None:
        """Raise DmlError if all images failed to decode."""
        if not done.paths:
            count, title = len(self.images.names), self.images.title
            raise DmlError(
                f"none of the {count} images in {title} can be decoded; e.g. {done.skipped[0][1]}"
            )


# Embeds chunks in any order, in this process (`ThisProcess`) or on other machines (`RayEngine`).
Engine = Callable[[EmbeddingPlan, Sequence[int]], Generator[ChunkRows, None, None]]


@dataclass(frozen=True, slots=True)
class ThisProcess:
    """The engine that embeds in this process."""

    workers: int = 0  # number of processes that load ahead

    def __call__(
        self, plan: EmbeddingPlan, chunks: Sequence[int]
    ) -> Generator[ChunkRows, None, None]:
        """Embed chunks of a plan in this order."""
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
    """Embed chunks of a plan with an engine, in any order, and show the progress on the console, if
    given.

    Set `done` to the number of images that an earlier call embedded. Raise DmlError if an embedding
    isn't finite or, unless `skip` is true, an image can't be decoded.
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
                if (
                    plan.images.split is not None
                ):  # items of a split can't be skipped, since all are labelled
                    raise DmlError(reason)
                raise DmlError(f"{reason}; or skip such images", arguments=("skip",))
            yield result
            done += len(plan.items(result.chunk))
            show(done, "")


@dataclass(frozen=True, slots=True)
class FolderEmbedding:
    """The names of embedded images, for example the result of `embed_folder`."""

    paths: Sequence[
        str
    ]  # (N,) names of the rows: paths relative to the folder, with / between folders
    skipped: Sequence[tuple[str, str]]  # path and reason per omitted image
    reused: int = 0  # number of images that an earlier call had embedded
    machines: Sequence[str] = ()  # for joined shards: the kinds of machine that embedded the shards


def embed_in_memory(
    plan: EmbeddingPlan, *, skip: bool = False, workers: int = 0, console: Console | None = None
) -> tuple[npt.NDArray[Any], FolderEmbedding]:
    """Embed all images of a plan in this process, and return rows and names; see `embed_folder` for
    the errors.
    """
    rows, kept, skipped = list[npt.NDArray[Any]](), list[str](), list[tuple[str, str]]()
    engine = ThisProcess(workers)
    with closing(
        embed_chunks(plan, range(len(plan)), engine, skip=skip, console=console)
    ) as chunks:
        for chunk in chunks:
            names, omitted = plan.names(chunk.chunk, chunk.bad)
            rows.append(chunk.rows)
            kept += names
            skipped += omitted
    done = FolderEmbedding(kept, skipped)
    plan.check_decoded(done)
    return np.concatenate(rows), done


def digest(texts: Iterable[str]) -> str:
    """Return the SHA-256 of texts; file names that aren't UTF-8 are hashed as bytes."""
    sha256 = hashlib.sha256()
    for text in texts:
        sha256.update(text.encode(errors="surrogateescape") + b"\0")
    return sha256.hexdigest()

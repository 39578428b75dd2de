"""The finished chunks of an embedding, each in a .npz file: the rows, the bad images, and a key of the sources.

A chunk is written as soon as it is embedded. Its key is a digest of the weights, the preparation, and the images'
names, sizes and times. A damaged file fails zip's checksums.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_train.files import WriteRefused, write_atomically
from dml_train.measure.embed import BadImage
from dml_train.trained.plan import ChunkRows, EmbeddingPlan, Engine, embed_chunks


class ChunkStore:
    """The folder of a plan's finished chunks.

    Args:
        folder: holds them; made if it is missing.
        plan: the plan.
        chunks: the chunks to store here; others are never read.

    Raises:
        WriteRefused: if the folder can't be made.
    """

    def __init__(self, folder: Path, plan: EmbeddingPlan, chunks: Sequence[int]) -> None:
        self._folder, self._plan, self._chunks = folder, plan, chunks
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise WriteRefused(f"can't create the folder {folder}: {error.strerror}") from error

    def fill(self, engine: Engine, *, skip: bool, console: Console | None) -> int:
        """Embed the chunks that are missing, damaged, or of other sources; return the number of images in the others.

        Arguments and errors are those of `dml_train.trained.plan.embed_chunks`. Finished chunks stay.
        """
        todo = [chunk for chunk in self._chunks if not self._is_complete(chunk, skip)]
        reused = self._plan.count(self._chunks) - self._plan.count(todo)
        with closing(
            embed_chunks(self._plan, todo, engine, skip=skip, console=console, done=reused)
        ) as embedded:
            for result in embedded:
                self._write(result)
        return reused

    def kept_and_skipped(self) -> tuple[list[str], list[tuple[str, str]]]:
        """Return the names of the rows, and name and reason of each omitted image."""
        kept: list[str] = []
        skipped: list[tuple[str, str]] = []
        for chunk in self._chunks:
            names, omitted = self._plan.names(chunk, self._read(chunk)[1])
            kept += names
            skipped += omitted
        return kept, skipped

    def parts(self) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows of each chunk."""
        return (self._read(chunk)[2] for chunk in self._chunks)

    def _is_complete(self, chunk: int, skip: bool) -> bool:
        """Whether a chunk is intact and of the present sources, and, unless `skip`, without bad images."""
        try:
            key, bad, _ = self._read(chunk)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
            return False
        return key == self._plan.key(chunk) and (skip or not bad)

    def _read(self, chunk: int) -> tuple[str, list[BadImage], npt.NDArray[Any]]:
        with self._path(chunk).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            key, bad = json.loads(str(stored["about"]))
            return key, [BadImage(*image) for image in bad], stored["rows"]

    def _write(self, result: ChunkRows) -> None:
        about = json.dumps([self._plan.key(result.chunk), result.bad])
        write_atomically(
            self._path(result.chunk),
            lambda file: np.savez(file, allow_pickle=False, about=np.array(about), rows=result.rows),
        )

    def _path(self, chunk: int) -> Path:
        return self._folder / f"{chunk:06d}.npz"

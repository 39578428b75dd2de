"""The finished chunks of an embedding: an array each and, written after it, a JSON record.

A chunk is written as soon as it is embedded, with the checksum of its rows and a key of its sources: the weights, the
preparation, and the images' names, sizes and times.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_train.files import WriteRefused, write_atomically, write_json
from dml_train.measure.chunks import BadImage
from dml_train.progress import stage
from dml_train.trained.plan import ChunkRows, EmbeddingPlan, Engine


class ChunkStore:
    """The folder of a plan's finished chunks.

    Args:
        folder: holds them; made if it is missing.
        plan: the plan.
        chunks: the chunks that belong into it; others are never read.

    Raises:
        WriteRefused: if the folder can't be made.
    """

    def __init__(self, folder: Path, plan: EmbeddingPlan, chunks: Sequence[int]) -> None:
        self.chunks = chunks
        self._folder, self._plan = folder, plan
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise WriteRefused(f"can't create the folder {folder}: {error.strerror}") from error

    def fill(self, engine: Engine, *, skip: bool, console: Console | None) -> int:
        """Embed the chunks that are missing, torn, or of other sources; return the number of images in the others.

        Args:
            engine: embeds chunks.
            skip: whether to omit images that can't be decoded; otherwise they are an error.
            console: shows the progress; None: it isn't shown.

        Raises:
            DmlError: as the engine, or for a full disk. Finished chunks stay.
        """
        todo = [chunk for chunk in self.chunks if not self._is_complete(chunk, skip)]
        total = self._plan.count(self.chunks)
        reused = done = total - self._plan.count(todo)
        with stage(console, "embed", total, done=done) as show:
            if todo:
                with closing(engine(self._plan, todo, skip=skip)) as embedded:
                    for result in embedded:
                        self._write(result)
                        done += len(self._plan.items(result.chunk))
                        show(done, "")
        return reused

    def bad_images(self, chunk: int) -> list[BadImage]:
        """Return a finished chunk's images that could not be decoded."""
        return [BadImage(*image) for image in self._read_record(chunk)["bad"]]

    def kept_and_skipped(self) -> tuple[list[str], list[tuple[str, str]]]:
        """Return the names of the rows, and name and reason of each omitted image."""
        kept: list[str] = []
        skipped: list[tuple[str, str]] = []
        for chunk in self.chunks:
            names = [self._plan.images.names[item] for item in self._plan.items(chunk)]
            reasons = {image.position: image.reason for image in self.bad_images(chunk)}
            kept += [name for position, name in enumerate(names) if position not in reasons]
            skipped += [(names[position], reason) for position, reason in reasons.items()]
        return kept, skipped

    def parts(self) -> Iterator[tuple[list[str], npt.NDArray[Any]]]:
        """Yield the names and rows of each chunk that has any."""
        for chunk in self.chunks:
            bad = {image.position for image in self.bad_images(chunk)}
            items = enumerate(self._plan.items(chunk))
            names = [self._plan.images.names[item] for position, item in items if position not in bad]
            if names:
                rows = np.frombuffer(self._array(chunk).read_bytes(), dtype=self._plan.dtype)
                yield names, rows.reshape(len(names), self._plan.width)

    def join(self, file: BinaryIO) -> None:
        """Write all chunks as one .npy file."""
        arrays = [self._array(chunk) for chunk in self.chunks]
        size = sum(array.stat().st_size for array in arrays)
        write_header(file, self._plan, size // (self._plan.width * self._plan.dtype.itemsize))
        for array in arrays:
            file.write(array.read_bytes())

    def _is_complete(self, chunk: int, skip: bool) -> bool:
        """Whether a chunk is intact and of the present sources, and, unless `skip`, without bad images."""
        try:
            record = self._read_record(chunk)
            return bool(
                record["key"] == self._plan.key(chunk)
                and record["sha256"] == hashlib.sha256(self._array(chunk).read_bytes()).hexdigest()
                and (skip or not record["bad"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _write(self, result: ChunkRows) -> None:
        """Write a chunk; a torn one is not complete."""
        key, content = self._plan.key(result.chunk), result.rows.tobytes()
        self._record(result.chunk).unlink(missing_ok=True)
        write_atomically(self._array(result.chunk), lambda file: file.write(content))
        write_json(
            self._record(result.chunk),
            {
                "key": key,
                "sha256": hashlib.sha256(content).hexdigest(),
                "bad": [list(image) for image in result.bad],
            },
        )

    def _read_record(self, chunk: int) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self._record(chunk).read_text())
        return record

    def _array(self, chunk: int) -> Path:
        return self._folder / f"{chunk:06d}.rows"

    def _record(self, chunk: int) -> Path:
        return self._folder / f"{chunk:06d}.json"


def write_header(file: BinaryIO, plan: EmbeddingPlan, rows: int) -> None:
    """Write the header of a .npy file with so many rows of a plan."""
    np.lib.format.write_array_header_1_0(
        file,
        {
            "descr": np.lib.format.dtype_to_descr(plan.dtype),
            "fortran_order": False,
            "shape": (rows, plan.width),
        },
    )

"""A folder of images to one file of embeddings, in steps that survive the end of the process.

Each chunk of images is written as soon as it is embedded, with the checksum of its rows and a key of its sources: the
weights, the preparation, and the files' names, sizes and times. Called again, it embeds only chunks that are missing,
torn, or of other sources; then it joins all chunks.

Shapes: `N` images that can be decoded, `D` embedding dimension.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_core import DmlError
from dml_train.files import WriteRefused, lock_folder, write_array, write_atomically, write_json
from dml_train.measure.chunks import CHUNK_SIZE, BadImage, drop_bad, split_chunks
from dml_train.measure.evaluate import pack_codes
from dml_train.progress import stage
from dml_train.trained.files import embed_files, find_images
from dml_train.trained.model import TrainedModel


@dataclass(frozen=True, slots=True)
class FolderEmbedding:
    """The result of `embed_folder`.

    Args:
        paths: (N,) of the rows, relative to the folder, with ``/`` between folders.
        skipped: path and reason of each omitted image.
        reused: number of images that an earlier call had embedded.
    """

    paths: Sequence[str]
    skipped: Sequence[tuple[str, str]]
    reused: int


def embed_folder(
    model: TrainedModel,
    folder: Path | str,
    out: Path | str,
    *,
    codes: bool = False,
    skip: bool = False,
    labels: Path | str | None = None,
    chunk_size: int = CHUNK_SIZE,
    workers: int = 0,
    console: Console | None = None,
) -> FolderEmbedding:
    """Embed all images of a folder and its subfolders, in the order of their paths.

    Beside `out` it writes a JSON file of the same name with ``.json`` for ``.npy``: the paths of the rows, the skipped
    images, the run and its step, and how images were prepared. Until all is done, chunks lie in ``.NAME.npy.chunks``.

    Args:
        model: embeds the images.
        folder: holds the images.
        out: the new .npy file: (N, D) float32, or, with `codes`, (N, ceil(D / 8)) uint8.
        codes: whether to write one bit per dimension, see `pack_codes`.
        skip: whether to omit images that can't be decoded; otherwise they are an error.
        labels: a new .npy file for labels, (N,) int64: the index of the image's first folder among all first folders,
            sorted by name.
        chunk_size: number of images that pass through the network, and are written, at a time; the last bits of the
            embeddings depend on it.
        workers: number of processes that load ahead.
        console: shows the progress; default: no progress is shown.

    Raises:
        DmlError: no images, an image that can't be decoded, labels for images in no folder, a full disk, or another
            process that writes the same file. Finished chunks stay.
    """
    folder, out = Path(folder), Path(out)
    paths = find_images(folder)
    if labels is not None:
        _class_names([path.as_posix() for path in paths], folder)
    files = [folder / path for path in paths]
    partial = _partial_folder(out)
    try:
        partial.mkdir(exist_ok=True)
    except OSError as error:
        raise WriteRefused(f"can't create the folder {partial}: {error.strerror}") from error
    with lock_folder(partial, f"writing {out}"):
        chunks = split_chunks(files, chunk_size)
        store = _ChunkStore(partial, model, codes, chunks)
        todo = [number for number in range(len(chunks)) if not store.is_complete(number, skip)]
        todo_chunks = [chunks[number] for number in todo]
        reused = len(files) - sum(map(len, todo_chunks))
        with (
            stage(console, "embed", len(files), done=reused) as show,
            closing(embed_files(model, todo_chunks, skip=skip, workers=workers)) as embedded_chunks,
        ):
            done = reused
            for number, embedded in zip(todo, embedded_chunks):
                rows = pack_codes(embedded.embeddings) if codes else embedded.embeddings
                store.write(number, rows, embedded.bad)
                done += len(chunks[number])
                show(done, "")
        kept: list[str] = []
        skipped: list[tuple[str, str]] = []
        for number, part in enumerate(split_chunks([path.as_posix() for path in paths], chunk_size)):
            bad = store.bad_images(number)
            kept += drop_bad(part, bad)
            skipped += [(part[image.position], image.reason) for image in bad]
        if not kept:
            raise DmlError(
                f"none of the {len(files)} images in {folder} can be decoded; e.g. {skipped[0][1]}"
            )
        classes: dict[str, Any] = {}
        if labels is not None:
            names = _class_names(kept, folder)
            ids = {name: label for label, name in enumerate(names)}
            write_array(
                Path(labels), np.array([ids[path.partition("/")[0]] for path in kept], dtype=np.int64)
            )
            classes = {"classes": names}
        write_json(
            index_path(out),
            {
                "run": str(model.folder.path.resolve()),
                "step": model.step,
                "weights": model.weights,
                "folder": str(folder.resolve()),
                "preparation": {} if model.reader is None else model.reader.describe(),
                "kind": "codes" if codes else "float32",
                "dim": model.dim,
                **classes,
                "paths": kept,
                "skipped": [{"path": path, "reason": reason} for path, reason in skipped],
            },
        )
        write_atomically(out, store.join)  # last: where it exists, the others do
        shutil.rmtree(partial)
    return FolderEmbedding(kept, skipped, reused)


def index_path(embeddings: Path) -> Path:
    """Return the path of the JSON file that describes the rows of a .npy file."""
    return embeddings.with_suffix(".json")


def has_partial(out: Path) -> bool:
    """Whether an earlier call has written chunks of this file."""
    return _partial_folder(out).is_dir()


def _partial_folder(out: Path) -> Path:
    return out.with_name(f".{out.name}.chunks")


def _class_names(paths: Sequence[str], folder: Path) -> list[str]:
    """Return the first folders on the paths, sorted by name.

    Raises:
        DmlError: if an image lies in no folder.
    """
    if (loose := next((path for path in paths if "/" not in path), None)) is not None:
        raise DmlError(
            f"labels are the names of the folders in {folder}, and {loose} lies in none; "
            "move it into its class's folder, or omit labels"
        )
    return sorted({path.partition("/")[0] for path in paths})


class _ChunkStore:
    """The finished chunks of one file: an array each and, written after it, a JSON record."""

    def __init__(
        self, folder: Path, model: TrainedModel, codes: bool, chunks: Sequence[Sequence[Path]]
    ) -> None:
        self._folder, self._chunks = folder, chunks
        self._width = -(-model.dim // 8) if codes else model.dim
        self._type = np.dtype(np.uint8 if codes else np.float32)
        self._made_by = json.dumps(
            [model.weights, model.recipe.dataset, model.recipe.training.precision, codes], sort_keys=True
        )

    def is_complete(self, chunk: int, skip: bool) -> bool:
        """Whether a chunk is intact and of the present sources, and, unless `skip`, without bad images."""
        try:
            record = self._read_record(chunk)
            return bool(
                record["key"] == self._key(chunk)
                and record["sha256"] == hashlib.sha256(self._array(chunk).read_bytes()).hexdigest()
                and (skip or not record["bad"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def write(self, chunk: int, rows: npt.NDArray[Any], bad: Sequence[BadImage]) -> None:
        """Write a chunk; a torn one is not complete."""
        key = self._key(chunk)
        self._record(chunk).unlink(missing_ok=True)
        write_atomically(self._array(chunk), lambda file: file.write(rows.tobytes()))
        digest = hashlib.sha256(rows.tobytes()).hexdigest()
        write_json(self._record(chunk), {"key": key, "sha256": digest, "bad": [list(image) for image in bad]})

    def bad_images(self, chunk: int) -> list[BadImage]:
        """Return a chunk's images that could not be decoded."""
        return [BadImage(*image) for image in self._read_record(chunk)["bad"]]

    def join(self, file: BinaryIO) -> None:
        """Write all chunks as one .npy file."""
        arrays = [self._array(chunk) for chunk in range(len(self._chunks))]
        rows = sum(array.stat().st_size for array in arrays) // (self._width * self._type.itemsize)
        header = {
            "descr": np.lib.format.dtype_to_descr(self._type),
            "fortran_order": False,
            "shape": (rows, self._width),
        }
        np.lib.format.write_array_header_1_0(file, header)
        for array in arrays:
            file.write(array.read_bytes())

    def _key(self, chunk: int) -> str:
        digest = hashlib.sha256(self._made_by.encode())
        for file in self._chunks[chunk]:
            try:
                status = file.stat()
                state = f"{status.st_size} {status.st_mtime_ns}"
            except FileNotFoundError:  # removed since the folder was read: an image that can't be decoded
                state = "gone"
            digest.update(f"{state} ".encode() + os.fsencode(file) + b"\0")
        return digest.hexdigest()

    def _read_record(self, chunk: int) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self._record(chunk).read_text())
        return record

    def _array(self, chunk: int) -> Path:
        return self._folder / f"{chunk:06d}.rows"

    def _record(self, chunk: int) -> Path:
        return self._folder / f"{chunk:06d}.json"

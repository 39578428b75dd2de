"""A folder of images to one file of embeddings, in steps that outlive the process.

Each chunk of images is written as soon as it is embedded, with the checksum of what was written and a key of what it
was made from: the weights, the preparation, and the files' names, sizes and times. Called again, only chunks that
are missing, torn, or made from something else are embedded anew; then all are joined.

Shapes: `N` images that could be decoded, `D` embedding dimension.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_core import DmlError
from dml_train.files import lock_folder, write_array, write_atomically, write_json
from dml_train.measure.evaluate import pack_codes
from dml_train.progress import stage
from dml_train.trained.files import BadImage, embed_chunks, images_in, in_chunks, without
from dml_train.trained.model import TrainedModel


@dataclass(frozen=True, slots=True)
class FolderEmbedding:
    """What was written.

    Args:
        paths: (N,) of the rows, from the folder, as POSIX writes them.
        skipped: path and reason of each image that was left out.
        reused: images whose embeddings an earlier call had left.
    """

    paths: Sequence[str]
    skipped: Sequence[tuple[str, str]]
    reused: int


def embed_folder(
    model: TrainedModel,
    folder: Path,
    out: Path,
    *,
    codes: bool = False,
    skip: bool = False,
    labels: Path | None = None,
    workers: int = 0,
    console: Console,
) -> FolderEmbedding:
    """Embed all images of a folder, however nested, in the order of their paths.

    Beside `out` comes a JSON file of its name with ``.json`` for ``.npy``: the paths of the rows, what was skipped,
    the run and its step, and how images were prepared. Until all is done, chunks lie in ``.NAME.npy.chunks``.

    Args:
        model: what embeds.
        folder: of the images.
        out: the new .npy file: (N, D) float32, or, with `codes`, (N, ceil(D / 8)) uint8.
        codes: whether to keep one bit a dimension, see `pack_codes`.
        skip: whether images that can't be decoded are left out; else they are an error.
        labels: a new .npy file for labels, (N,) int64: the number of the image's first folder among all such, by name.
        workers: processes that load ahead.
        console: where progress is shown.

    Raises:
        DmlError: no images, an image that can't be decoded, labels for images that lie in no folder, a disk that is
            full, or another process at the same file. Finished chunks stay.
    """
    paths = images_in(folder)
    if labels is not None:
        _class_names([path.as_posix() for path in paths], folder)
    files = [folder / path for path in paths]
    work = _work(out)
    try:
        work.mkdir(exist_ok=True)
    except OSError as error:
        raise DmlError(f"can't make the folder {work}: {error.strerror}") from error
    with lock_folder(work, f"writing {out}"):
        store = _Chunks(work, model, codes, files)
        todo = [chunk for chunk in range(len(store)) if not store.has(chunk, skip)]
        reused = len(files) - sum(len(store.files_of(chunk)) for chunk in todo)
        with stage(console, "embed", len(files), done=reused) as show:
            done = reused
            chunks = [store.files_of(chunk) for chunk in todo]
            for chunk, embedded in zip(todo, embed_chunks(model, chunks, skip=skip, workers=workers)):
                store.write(
                    chunk, pack_codes(embedded.embeddings) if codes else embedded.embeddings, embedded.bad
                )
                done += len(store.files_of(chunk))
                show(done, "")
        kept: list[str] = []
        skipped: list[tuple[str, str]] = []
        for chunk, part in enumerate(in_chunks([path.as_posix() for path in paths])):
            bad = store.bad(chunk)
            kept += without(part, bad)
            skipped += [(part[image.place], image.reason) for image in bad]
        if not kept:
            raise DmlError(
                f"none of the {len(files)} images in {folder} can be decoded; e.g. {skipped[0][1]}"
            )
        names: dict[str, Any] = {}
        if labels is not None:
            classes = _class_names(kept, folder)
            ids = {name: label for label, name in enumerate(classes)}
            write_array(labels, np.array([ids[path.partition("/")[0]] for path in kept], dtype=np.int64))
            names = {"classes": classes}
        write_json(
            index_of(out),
            {
                "run": str(model.folder.path.resolve()),
                "step": model.step,
                "weights": model.weights,
                "folder": str(folder.resolve()),
                "preparation": {} if model.reader is None else model.reader.describe(),
                "kind": "codes" if codes else "float32",
                "dim": model.model.head.embedding_dim,
                **names,
                "paths": kept,
                "skipped": [{"path": path, "reason": reason} for path, reason in skipped],
            },
        )
        write_atomically(out, store.join)  # last: where it is, all is
        shutil.rmtree(work)
    return FolderEmbedding(kept, skipped, reused)


def index_of(embeddings: Path) -> Path:
    """The JSON file that says what the rows of a .npy file are."""
    return embeddings.with_suffix(".json")


def begun(out: Path) -> bool:
    """Whether an earlier call has left chunks of this file."""
    return _work(out).is_dir()


def _work(out: Path) -> Path:
    return out.with_name(f".{out.name}.chunks")


def _class_names(paths: Sequence[str], folder: Path) -> list[str]:
    """The first folders on the paths, by name.

    Raises:
        DmlError: if an image lies in none.
    """
    if (loose := next((path for path in paths if "/" not in path), None)) is not None:
        raise DmlError(
            f"labels are the names of the folders in {folder}, and {loose} lies in none; "
            "move it into its class's folder, or leave --labels away"
        )
    return sorted({path.partition("/")[0] for path in paths})


class _Chunks:
    """The finished chunks of one file, each an array and, written after it, a JSON file."""

    def __init__(self, work: Path, model: TrainedModel, codes: bool, files: Sequence[Path]) -> None:
        self._work, self._chunks = work, in_chunks(files)
        dim = model.model.head.embedding_dim
        self._width = -(-dim // 8) if codes else dim
        self._type = np.dtype(np.uint8 if codes else np.float32)
        self._made_by = json.dumps(
            [model.weights, model.recipe.dataset, model.recipe.training.precision, codes], sort_keys=True
        )

    def __len__(self) -> int:
        return len(self._chunks)

    def files_of(self, chunk: int) -> Sequence[Path]:
        return self._chunks[chunk]

    def has(self, chunk: int, skip: bool) -> bool:
        """Whether a chunk is whole and made from what there is now, without bad images unless they may be skipped."""
        try:
            stored = self._read(chunk)
            return bool(
                stored["key"] == self._key(chunk)
                and stored["sha256"] == hashlib.sha256(self._array(chunk).read_bytes()).hexdigest()
                and (skip or not stored["bad"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def write(self, chunk: int, rows: npt.NDArray[Any], bad: Sequence[BadImage]) -> None:
        """Leave a chunk, whole."""
        key = self._key(chunk)
        self._about(chunk).unlink(missing_ok=True)
        write_atomically(self._array(chunk), lambda file: file.write(rows.tobytes()))
        digest = hashlib.sha256(rows.tobytes()).hexdigest()
        write_json(self._about(chunk), {"key": key, "sha256": digest, "bad": [list(image) for image in bad]})

    def bad(self, chunk: int) -> list[BadImage]:
        """A chunk's images that could not be decoded."""
        return [BadImage(*image) for image in self._read(chunk)["bad"]]

    def join(self, file: BinaryIO) -> None:
        """Write all chunks as one .npy file."""
        rows = sum(self._array(chunk).stat().st_size for chunk in range(len(self)))
        rows //= self._width * self._type.itemsize
        header = {
            "descr": np.lib.format.dtype_to_descr(self._type),
            "fortran_order": False,
            "shape": (rows, self._width),
        }
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in range(len(self)):
            file.write(self._array(chunk).read_bytes())

    def _key(self, chunk: int) -> str:
        digest = hashlib.sha256(self._made_by.encode())
        for file in self.files_of(chunk):
            try:
                about = file.stat()
                state = f"{about.st_size} {about.st_mtime_ns}"
            except FileNotFoundError:  # removed since the folder was read: an image that can't be decoded
                state = "gone"
            digest.update(f"{state} ".encode() + os.fsencode(file) + b"\0")
        return digest.hexdigest()

    def _read(self, chunk: int) -> dict[str, Any]:
        stored: dict[str, Any] = json.loads(self._about(chunk).read_text())
        return stored

    def _array(self, chunk: int) -> Path:
        return self._work / f"{chunk:06d}.rows"

    def _about(self, chunk: int) -> Path:
        return self._work / f"{chunk:06d}.json"

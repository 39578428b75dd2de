"""Embed images into a file, so that an interrupted call can resume.

When called again, `embed_images` embeds only chunks that are missing, damaged or outdated (see
`ChunkStore`), and then joins all chunks.

Shapes: `N` images that can be decoded, `D` embedding dimension.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_train.extras import extra
from dml_train.files import (
    lock_folder,
    report_write_errors,
    write_array,
    write_atomically,
    write_json,
)
from dml_train.measure.embed import CHUNK_SIZE, BadImage
from dml_train.trained.images import list_folder
from dml_train.trained.model import TrainedModel
from dml_train.trained.plan import EmbeddingPlan, Engine, FolderEmbedding, ThisProcess, embed_chunks


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
    """Embed all images in a folder, including subfolders, sorted by path.

    This function also writes a JSON file, with the suffix ``.json`` instead of ``.npy``: the paths
    of the rows, the skipped images, the run and step, and how images were prepared. Chunks are kept
    in ``.NAME.npy.chunks`` until the file is complete, even after an error.

    Args:
        out: the .npy file to create: (N, D) float32, or, with `codes`, (N, ceil(D / 8)) uint8.
        codes: whether to write a single bit per dimension, see `pack_codes`.
        skip: whether to omit images that can't be decoded, instead of raising an error.
        labels: a .npy file to create for labels, (N,) int64; see `ImageList.labels`.
        chunk_size: number of images to embed and write per chunk. The last bits of the embeddings
            depend on this size.
        workers: number of processes that load ahead.
        console: shows progress; by default, not shown.

    Raise DmlError if images are missing, an image can't be decoded, an image to label isn't in a
    subfolder, the disk is full, or another process writes this file.
    """
    plan = EmbeddingPlan(model, list_folder(Path(folder)), codes, chunk_size)
    return embed_images(plan, out, ThisProcess(workers), skip=skip, labels=labels, console=console)


def embed_images(
    plan: EmbeddingPlan,
    out: Path | str,
    engine: Engine,
    *,
    skip: bool = False,
    labels: Path | str | None = None,
    console: Console | None = None,
) -> FolderEmbedding:
    """Embed the images of a plan with an engine; see `embed_folder` for the other arguments and
    errors.

    `out` can also be a .parquet file, with a row per image: ``path``, ``embedding`` (D float32) or
    ``code`` (bytes), and, with `labels`, ``label``.
    """
    out = Path(out)
    if labels is not None:
        plan.images.labels(plan.images.names)  # fail before the work if labels can't be made
    store = ChunkStore(out, plan, range(len(plan)))
    with store.filled(engine, doing=f"writing {out}", skip=skip, console=console) as done:
        write_embedding(plan, out, done, store.parts(), labels)
    return done


class ChunkStore:
    """A folder of finished `chunks`, to be joined to the file `path`.

    A chunk is a .npz file with the plan's key for the chunk, the bad images, and the rows. The
    checksums of the zip format reveal a damaged file.
    """

    def __init__(self, path: Path, plan: EmbeddingPlan, chunks: Sequence[int]) -> None:
        self.folder = chunks_folder(path)
        self._plan, self._chunks = plan, chunks

    @contextmanager
    def filled(
        self, engine: Engine, *, doing: str, skip: bool, console: Console | None
    ) -> Iterator[FolderEmbedding]:
        """Embed chunks that are missing, damaged or outdated; when the context ends, remove all
        chunks.
        """
        with report_write_errors(f"make the folder {self.folder}"):
            self.folder.mkdir(exist_ok=True)
        plan = self._plan
        with lock_folder(self.folder, doing):
            todo = [chunk for chunk in self._chunks if not self._is_complete(chunk, skip)]
            reused = plan.count(self._chunks) - plan.count(todo)
            with closing(
                embed_chunks(plan, todo, engine, skip=skip, console=console, done=reused)
            ) as chunks:
                for embedded in chunks:
                    self._write(*embedded)
            named = [plan.names(chunk, self._read(chunk)[1]) for chunk in self._chunks]
            kept = [name for names, _ in named for name in names]
            yield FolderEmbedding(
                kept, [image for _, omitted in named for image in omitted], reused
            )
            shutil.rmtree(self.folder)

    def parts(self) -> Iterator[npt.NDArray[Any]]:
        """Yield rows chunk by chunk."""
        return (self._read(chunk)[2] for chunk in self._chunks)

    def _is_complete(self, chunk: int, skip: bool) -> bool:
        """Return whether a chunk is intact and up to date and, unless `skip`, doesn't list bad
        images.
        """
        try:
            key, bad, _ = self._read(chunk)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
            return False
        return key == self._plan.key(chunk) and (skip or not bad)

    def _read(self, chunk: int) -> tuple[str, list[BadImage], npt.NDArray[Any]]:
        with self._path(chunk).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            key, bad = json.loads(str(stored["about"]))
            return key, [BadImage(*image) for image in bad], stored["rows"]

    def _write(self, chunk: int, rows: npt.NDArray[Any], bad: Sequence[BadImage]) -> None:
        about = np.array(json.dumps([self._plan.key(chunk), bad]))
        path = self._path(chunk)
        write_atomically(
            path, lambda file: np.savez(file, allow_pickle=False, about=about, rows=rows)
        )

    def _path(self, chunk: int) -> Path:
        return self.folder / f"{chunk:06d}.npz"


def write_embedding(
    plan: EmbeddingPlan,
    out: Path,
    done: FolderEmbedding,
    parts: Iterable[npt.NDArray[Any]],
    labels: Path | str | None,
) -> None:
    """Write the files of a complete embedding: labels, the description of the rows, and the rows,
    given in parts.
    """
    kept = done.paths
    plan.check_decoded(done)
    label_ids: npt.NDArray[np.int64] | None = None
    classes: dict[str, Any] = {}
    if labels is not None:
        label_ids, classes = plan.images.labels(kept)
        write_array(Path(labels), label_ids)
    if (described := plan.images.describe()) is not None:
        model = plan.model
        write_json(
            index_path(out),
            {
                "run": str(model.folder.path.resolve()),
                "step": model.step,
                "weights": model.weights,
                **described,
                "preparation": {} if model.reader is None else model.reader.describe(),
                "kind": "codes" if plan.codes else "float32",
                "dim": model.dim,
                **classes,
                "paths": kept,
                "skipped": list_skipped(done),
            },
        )

    def write(file: BinaryIO) -> None:
        if out.suffix == ".parquet":
            _write_parquet(file, parts, kept, label_ids)
        else:
            write_rows(file, plan, len(kept), parts)

    write_atomically(out, write)  # last, so that the other files exist when this file does


def list_skipped(done: FolderEmbedding) -> list[dict[str, str]]:
    """List the omitted images in JSON's types."""
    return [{"path": path, "reason": reason} for path, reason in done.skipped]


def write_rows(
    file: BinaryIO, plan: EmbeddingPlan, count: int, parts: Iterable[npt.NDArray[Any]]
) -> None:
    """Write rows, given in consecutive parts, as a .npy file."""
    header = {
        "descr": np.lib.format.dtype_to_descr(plan.dtype),
        "fortran_order": False,
        "shape": (count, plan.width),
    }
    np.lib.format.write_array_header_1_0(file, header)
    for rows in parts:
        file.write(rows.tobytes())


def _write_parquet(
    file: BinaryIO,
    parts: Iterable[npt.NDArray[Any]],
    names: Sequence[str],
    labels: npt.NDArray[np.int64] | None,
) -> None:
    """Write a table with a row group per part, see `embed_images`."""
    with extra("tables", "a Parquet file"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    with ExitStack() as until_the_end:
        writer, done = None, 0
        for rows in filter(len, parts):
            end, width = done + len(rows), rows.shape[1]
            columns = {"path": pa.array(names[done:end], pa.string())}
            if rows.dtype == np.uint8:
                buffers = [None, pa.py_buffer(np.ascontiguousarray(rows))]
                columns["code"] = pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(width), len(rows), buffers
                )
            else:
                columns["embedding"] = pa.FixedSizeListArray.from_arrays(
                    pa.array(rows.reshape(-1)), width
                )
            if labels is not None:
                columns["label"] = pa.array(labels[done:end])
            table = pa.table(columns)
            writer = writer or until_the_end.enter_context(pq.ParquetWriter(file, table.schema))
            writer.write_table(table)
            done = end


def index_path(embeddings: Path) -> Path:
    """Return the path of the JSON file that describes the rows of a .npy file."""
    return embeddings.with_suffix(".json")


def chunks_folder(out: Path) -> Path:
    """Return the folder that keeps finished chunks of a file until the file is complete."""
    return out.with_name(f".{out.name}.chunks")

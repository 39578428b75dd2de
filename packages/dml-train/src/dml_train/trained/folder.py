"""Images to one file of embeddings, in steps that survive the end of the process.

Called again, `embed_images` embeds only chunks that are missing, damaged, or of other sources (see `ChunkStore`); then
it joins all chunks.

Shapes: `N` images that can be decoded, `D` embedding dimension.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_train.extras import extra
from dml_train.files import lock_folder, report_write_errors, write_array, write_atomically, write_json
from dml_train.measure.embed import CHUNK_SIZE, BadImage
from dml_train.trained.images import list_folder
from dml_train.trained.model import TrainedModel
from dml_train.trained.plan import ChunkRows, EmbeddingPlan, Engine, ThisProcess, embed_chunks, refuse_none


@dataclass(frozen=True, slots=True)
class FolderEmbedding:
    """The result of `embed_folder`."""

    paths: Sequence[str]  # (N,) of the rows, relative to the folder, with / between folders
    skipped: Sequence[tuple[str, str]]  # path and reason of each omitted image
    reused: int  # number of images that an earlier call had embedded
    machines: Sequence[str] = ()  # of joined shards: the kinds of machine that embedded them


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
    """Embed the images of a plan by an engine, as `embed_folder` does.

    `out` may also be a .parquet file, with a row per image: ``path``, ``embedding`` (D float32) or ``code`` (bytes),
    and, with `labels`, ``label``. See `embed_folder` for the other arguments and the errors.
    """
    out = Path(out)
    if labels is not None:
        plan.images.labels(plan.images.names)  # or fail before the work
    store = ChunkStore(out, plan, range(len(plan)))
    with store.filled(engine, doing=f"writing {out}", skip=skip, console=console) as done:
        write_embedding(plan, out, done, store.parts(), labels)
    return done


class ChunkStore:
    """The folder of a file's finished `chunks`, each a .npz file: a key of its sources, the bad images, and the rows.

    The key is a digest of the weights, the preparation, and the images' names, sizes and times. A damaged file fails
    zip's checksums. `path` is the file that the chunks will be joined to.
    """

    def __init__(self, path: Path, plan: EmbeddingPlan, chunks: Sequence[int]) -> None:
        self.folder = chunks_folder(path)
        self._plan, self._chunks = plan, chunks

    @contextmanager
    def filled(
        self, engine: Engine, *, doing: str, skip: bool, console: Console | None
    ) -> Iterator[FolderEmbedding]:
        """Embed chunks that are missing, damaged, or of other sources; when the context ends, remove all chunks."""
        with report_write_errors(f"make the folder {self.folder}"):
            self.folder.mkdir(exist_ok=True)
        plan = self._plan
        with lock_folder(self.folder, doing):
            todo = [chunk for chunk in self._chunks if not self._is_complete(chunk, skip)]
            reused = plan.count(self._chunks) - plan.count(todo)
            with closing(
                embed_chunks(plan, todo, engine, skip=skip, console=console, done=reused)
            ) as embedded:
                for result in embedded:
                    self._write(result)
            named = [plan.names(chunk, self._read(chunk)[1]) for chunk in self._chunks]
            kept = [name for names, _ in named for name in names]
            yield FolderEmbedding(kept, [image for _, omitted in named for image in omitted], reused)
            shutil.rmtree(self.folder)

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
        return self.folder / f"{chunk:06d}.npz"


def write_embedding(
    plan: EmbeddingPlan,
    out: Path,
    done: FolderEmbedding,
    parts: Iterable[npt.NDArray[Any]],
    labels: Path | str | None,
) -> None:
    """Write the files of a complete embedding: labels, the description of the rows, and the rows in their parts."""
    kept = done.paths
    refuse_none(plan, kept, done.skipped)
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

    write_atomically(out, write)  # last: where it exists, the others do


def list_skipped(done: FolderEmbedding) -> list[dict[str, str]]:
    """List the omitted images in JSON's types."""
    return [{"path": path, "reason": reason} for path, reason in done.skipped]


def write_rows(file: BinaryIO, plan: EmbeddingPlan, count: int, parts: Iterable[npt.NDArray[Any]]) -> None:
    """Write rows, given in consecutive parts, as one .npy file."""
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
    """Write a row group for each part, see `embed_images`."""
    with extra("tables", "a Parquet file"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    with ExitStack() as until_the_end:
        writer, done = None, 0
        for rows in filter(len, parts):
            end, width = done + len(rows), rows.shape[1]
            columns = {"path": pa.array(names[done:end], pa.string())}
            if rows.dtype == np.uint8:
                content = pa.py_buffer(np.ascontiguousarray(rows))
                columns["code"] = pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(width), len(rows), [None, content]
                )
            else:
                columns["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), width)
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
    """Return the folder of a file's finished chunks, as long as others are missing."""
    return out.with_name(f".{out.name}.chunks")

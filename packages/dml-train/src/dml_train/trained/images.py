"""Images to embed, in a fixed order: of a folder, of tar archives or tables, or of a split of a run's data set.

Archives and tables are listed by reading only headers and metadata, and read at random: a machine reads only the images
that it embeds.

Shapes: `N` images.
"""

from __future__ import annotations

import functools
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dml_core import DmlError, Registry, Split
from dml_core import registry as installed
from dml_train.data.decoding import SUFFIXES, ImageSource
from dml_train.data.image_folder import image_files
from dml_train.extras import extra
from dml_train.measure.embed import ImageChunks
from dml_train.trained.model import TrainedModel
from dml_train.training.build import build_dataset

SplitName = Literal["train", "test", "gallery"]


@dataclass(frozen=True, slots=True)
class ImageList:
    """Images in a fixed order: image files, images inside files, or the items of a split."""

    title: str  # names the list in messages: ``"photos"``
    names: Sequence[str]  # (N,) strings; they identify the images on every machine
    sources: Sequence[ImageSource] = ()  # (N,) the images; empty for a split
    files: Sequence[Path] = ()  # (N,) the file that holds each image; empty for a split
    # The folder of image files, whose subfolders are classes; None for other images.
    folder: Path | None = None
    split: Split | None = None  # the split
    split_name: SplitName | None = None  # its name in the run's data set

    @property
    def places(self) -> list[Path]:
        """Files or folders that hold the images: other machines must see them, too."""
        return list(dict.fromkeys(self.files)) if self.folder is None else [self.folder]

    def chunks(self, model: TrainedModel, items: Sequence[range]) -> ImageChunks:
        """Return chosen images in chunks, prepared for the model."""
        chunks = [np.arange(part.start, part.stop) for part in items]
        return (
            model.chunks_of(self.sources, chunks) if self.split is None else ImageChunks(self.split, chunks)
        )

    def labels(self, kept: Sequence[str]) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
        """Return the labels of the images of these names, and their entry in the description of the rows.

        An image in a folder has the index of its first folder among all first folders, sorted by name; raise DmlError
        if it lies in none, or images aren't files of a folder. A split has labels, and omits no image.
        """
        if self.split is not None:
            return self.split.labels, {}
        if self.folder is None:
            raise DmlError(f"labels are the names of folders, and {self.title} has none; omit labels")
        if (loose := next((name for name in kept if "/" not in name), None)) is not None:
            raise DmlError(
                f"labels are the names of the folders in {self.folder}, and {loose} lies in none; "
                "move it into its class's folder, or omit labels"
            )
        folders = [name.partition("/")[0] for name in kept]
        classes, labels = np.unique(np.array(folders, dtype=object), return_inverse=True)
        return labels.astype(np.int64), {"classes": classes.tolist()}

    def describe(self) -> dict[str, Any] | None:
        """Describe the list in JSON's types; None for a split, whose rows are its items."""
        if self.split is not None:
            return None
        if self.folder is not None:
            return {"folder": str(self.folder.resolve())}
        return {"files": [str(file.resolve()) for file in self.places]}

    def states(self, items: Iterable[int], *, with_time: bool = True) -> list[str]:
        """Return for each item what reveals a change without reading it: its name, and its file's size and time."""
        if self.split is not None:
            return [self.names[item] for item in items]
        found = [self.files[item] for item in items]
        statuses = {file: _describe_file(file, with_time) for file in dict.fromkeys(found)}
        return [f"{self.names[item]} {statuses[file]}" for item, file in zip(items, found)]


def find_images(folder: Path) -> list[Path]:
    """Find the images in a folder and its subfolders: their paths relative to it, sorted; hidden ones are omitted.

    Raise DmlError if it isn't a folder, holds no image, or a folder below it can't be read.
    """
    if not folder.is_dir():
        raise DmlError(f"{folder} is not a folder; expected one with images in it or in its subfolders")
    images = [file.relative_to(folder) for file in image_files(folder)]
    images = [path for path in images if not any(part.startswith(".") for part in path.parts)]
    if not images:
        raise DmlError(f"{folder} holds no images: no file in it ends in {', '.join(sorted(SUFFIXES))}")
    return images


def list_folder(folder: Path) -> ImageList:
    """List all images of a folder and its subfolders; raises as `find_images`."""
    return list_files(folder, folder, [path.as_posix() for path in find_images(folder)])


def list_files(title: Path, folder: Path, names: Sequence[str]) -> ImageList:
    """List image files by their paths relative to a folder, with ``/`` between folders."""
    files = [folder / name for name in names]
    return ImageList(str(title), names, files, files, folder)


def list_split(model: TrainedModel, name: SplitName, registry: Registry | None = None) -> ImageList:
    """List a split of the run's data set; raise DmlError if there is no such split, or its files are missing."""
    dataset = build_dataset(model.recipe, registry or installed())
    split = {"train": dataset.train, "test": dataset.test, "gallery": dataset.gallery}[name]
    if split is None:
        raise DmlError(
            f"the data set {model.recipe.dataset['name']!r} has no separate gallery: its test split is queries and "
            "gallery"
        )
    names = [f"{item} {split.class_names[label]}" for item, label in enumerate(split.labels.tolist())]
    return ImageList(f"the {name} split", names, split=split, split_name=name)


def _describe_file(file: Path, with_time: bool) -> str:
    try:
        status = file.stat()
    except FileNotFoundError:  # removed since it was listed: an image that can't be decoded
        return "gone"
    return f"{status.st_size} {status.st_mtime_ns}" if with_time else str(status.st_size)


TABLES = frozenset({".parquet", ".arrow", ".feather"})
_COLUMNS = ("image", "bytes", "path", "file")  # sought in this order


@dataclass(frozen=True, slots=True)
class TarMember:
    """A `StoredImage` of a tar archive: its name there, and the offset and size of its content in bytes."""

    archive: Path
    member: str
    offset: int
    size: int

    @property
    def name(self) -> str:
        """Name the image for messages."""
        return f"{self.archive}: {self.member}"

    def read(self) -> bytes:
        """Read the encoded image."""
        with self.archive.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A `StoredImage` in a row of a Parquet or Arrow file: a cell with an encoded image."""

    table: Path
    row: int

    @property
    def name(self) -> str:
        """Name the image for messages."""
        return f"{self.table}, row {self.row}"

    def read(self) -> bytes:
        """Read the encoded image; raise DmlError if the cell is empty, or the file can't be read."""
        opened = _open_table(self.table)
        cell = opened.cell(self.row)
        if isinstance(cell, dict):  # as Hugging Face's data sets store images
            cell = cell.get("bytes")
        if not isinstance(cell, bytes):
            raise DmlError(
                f"{self.name}: the column {opened.column!r} holds {type(cell).__name__}; expected encoded images "
                "(bytes)"
            )
        return cell


def open_images(path: Path) -> ImageList:
    """List the images of a folder, an archive or a table, or of a folder of these; raise DmlError if there are none."""
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in {".tar", *TABLES})
        try:
            return list_folder(path)
        except DmlError:
            if not files:
                raise
        kinds = sorted({file.suffix for file in files})
        if len(kinds) > 1:
            raise DmlError(f"{path} holds {' and '.join(kinds)} files; expected images, or files of one kind")
    kind = files[0].suffix
    if not all(file.is_file() for file in files) or kind not in {".tar", *TABLES}:
        raise DmlError(
            f"{path} is not a folder; expected one with images in it or in its subfolders, a .tar archive, or a table "
            f"({', '.join(sorted(TABLES))})"
        )
    files = [file.absolute() for file in files]
    return _list_archives(path, files) if kind == ".tar" else _list_tables(path, files)


def _list_archives(path: Path, files: Sequence[Path]) -> ImageList:
    members: list[TarMember] = []
    for file in files:
        try:
            with tarfile.open(file, "r:") as archive:
                members += [
                    TarMember(file, entry.name, entry.offset_data, entry.size)
                    for entry in archive
                    if entry.isreg() and Path(entry.name).suffix.lower() in SUFFIXES
                ]
        except (tarfile.TarError, OSError) as error:
            raise DmlError(
                f"can't read the archive {file}: {error}; expected a tar file that isn't compressed"
            ) from error
    if not members:
        raise DmlError(f"{path} holds no images: no member ends in {', '.join(sorted(SUFFIXES))}")
    names = [f"{member.archive.name}/{member.member}" for member in members]
    return ImageList(str(path), names, members, [member.archive for member in members])


def _list_tables(path: Path, files: Sequence[Path]) -> ImageList:
    """List the images of tables, whose cells are encoded images or paths relative to the table's folder."""
    rows: list[TableRow] = []
    paths: list[str] = []
    for file in files:
        opened = _open_table(file)
        if opened.holds_text:
            paths += opened.texts()
        else:
            rows += [TableRow(file, row) for row in range(opened.num_rows)]
    if rows and paths:
        raise DmlError(f"some tables in {path} hold images, and others paths; expected one kind")
    if paths:
        return list_files(path, files[0].parent, paths)
    if not rows:
        raise DmlError(f"{path} holds no images: its tables have no rows")
    return ImageList(
        str(path), [f"{row.table.name}/{row.row}" for row in rows], rows, [row.table for row in rows]
    )


class _Table:
    """The column of images or paths in a table; it keeps the last group of rows that it read."""

    def __init__(self, file: Path) -> None:
        with extra("tables", f"{file.name}"):
            import pyarrow as pa
            import pyarrow.parquet as pq
        self._group = -1
        self._cells: Any = None
        self._read: Callable[[int], Any]
        try:
            if file.suffix == ".parquet":
                parquet = pq.ParquetFile(file, memory_map=True)
                schema, groups = parquet.schema_arrow, range(parquet.num_row_groups)
                counts = [parquet.metadata.row_group(group).num_rows for group in groups]
                self._read = lambda group: parquet.read_row_group(group, columns=[self.column]).column(0)
            else:
                arrow = pa.ipc.open_file(pa.memory_map(str(file)))
                schema, groups = arrow.schema, range(arrow.num_record_batches)
                # A batch is a view of the mapped file: reading it costs nothing.
                counts = [arrow.get_batch(batch).num_rows for batch in groups]
                self._read = lambda batch: arrow.get_batch(batch).column(self.column)
        except (pa.ArrowException, OSError) as error:
            raise DmlError(f"can't read the table {file}: {error}") from error
        found = next((name for name in _COLUMNS if name in schema.names), None)
        if found is None:
            raise DmlError(
                f"{file} has the columns {', '.join(schema.names)}; expected encoded images in 'image' or 'bytes', or "
                "paths in 'path' or 'file'"
            )
        self.column = found
        self._ends = np.cumsum([0, *counts])
        kind = schema.field(found).type
        self.holds_text = bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
        self.num_rows = int(self._ends[-1])

    def cell(self, row: int) -> Any:
        group = int(np.searchsorted(self._ends, row, side="right")) - 1
        if group != self._group:
            self._cells, self._group = self._read(group), group
        return self._cells[row - int(self._ends[group])].as_py()

    def texts(self) -> list[str]:
        return [text for group in range(len(self._ends) - 1) for text in self._read(group).to_pylist()]


_open_table = functools.lru_cache(maxsize=4)(_Table)

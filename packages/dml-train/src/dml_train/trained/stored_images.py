"""Images inside larger files: tar archives, as of WebDataset, and tables in Parquet or Arrow files.

Both are listed by reading headers and metadata alone, and read at random: a machine reads only the images that it
embeds.

Shapes: `N` images.
"""

from __future__ import annotations

import functools
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_core import DmlError, Split
from dml_train.data.decoding import SUFFIXES, ImageSource
from dml_train.extras import extra
from dml_train.trained.files import find_images
from dml_train.trained.images import FolderImages, ImageList, describe_file
from dml_train.trained.model import TrainedModel

TABLES = frozenset({".parquet", ".arrow", ".feather"})
_COLUMNS = ("image", "bytes", "path", "file")  # those that are looked for, in this order


@dataclass(frozen=True, slots=True)
class TarMember:
    """A `StoredImage` of a tar archive.

    Args:
        archive: the archive.
        member: its name in the archive.
        offset, size: of its content, in bytes.
    """

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
    """A `StoredImage` of a table: a cell with an encoded image.

    Args:
        table: a Parquet or Arrow file.
        column: holds the images.
        row: in the file.
    """

    table: Path
    column: str
    row: int

    @property
    def name(self) -> str:
        """Name the image for messages."""
        return f"{self.table}, row {self.row}"

    def read(self) -> bytes:
        """Read the encoded image.

        Raises:
            DmlError: if the cell is empty, or the file can't be read.
        """
        opened = _open_table(self.table, self.column)
        cell = opened.cell(self.row)
        if isinstance(cell, dict):  # as Hugging Face's data sets store images
            cell = cell.get("bytes")
        if not isinstance(cell, bytes):
            raise DmlError(
                f"{self.name}: the column {self.column!r} holds {type(cell).__name__}; expected encoded images (bytes)"
            )
        return cell


class StoredImages:
    """Images inside files, in the order of the files and within them.

    Args:
        title: names the list in messages.
        images: the images.
        names: (N,) of the images.
        files: the file of each image.
    """

    split_name = None

    def __init__(
        self,
        title: str,
        images: Sequence[TarMember] | Sequence[TableRow],
        names: Sequence[str],
        files: Sequence[Path],
    ) -> None:
        self.title, self.names = title, names
        self.shown: Sequence[str] | None = names
        self.places = list(dict.fromkeys(files))
        self._images, self._files = images, files
        self._states = {file: describe_file(file) for file in self.places}

    def split(self, model: TrainedModel) -> Split:
        """Return the images as a split, prepared for the model."""
        return model.split_of(self._images)

    def sources(self, items: range) -> list[ImageSource]:
        """Return the places of images."""
        return [self._images[item] for item in items]

    def labels(self, kept: Sequence[str]) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
        """Refuse: only folders are labels.

        Raises:
            DmlError: always.
        """
        raise DmlError(f"labels are the names of folders, and {self.title} has none; omit labels")

    def describe(self) -> dict[str, Any]:
        """Describe the list: its files."""
        return {"files": [str(file.resolve()) for file in self.places]}

    def size(self, item: int) -> str:
        """Return the size of the file that holds the image."""
        return self._states[self._files[item]].partition(" ")[0]

    def state(self, item: int) -> bytes:
        """Return path, size and time of the file that holds the image, and the image's name."""
        file = self._files[item]
        return f"{self._states[file]} {file} {self.names[item]}".encode(errors="surrogateescape")


def open_images(path: Path) -> ImageList:
    """List the images of a folder, a tar archive, a table, or of a folder of archives or tables without images.

    Raises:
        DmlError: if there are none.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in {".tar", *TABLES})
        kinds = {file.suffix for file in files}
        if not files or _holds_images(path):
            return FolderImages(path)
        if len(kinds) > 1:
            raise DmlError(
                f"{path} holds {' and '.join(sorted(kinds))} files; expected images, or files of one kind"
            )
    else:
        files = [path]
    kind = files[0].suffix
    if not all(file.is_file() for file in files) or kind not in {".tar", *TABLES}:
        raise DmlError(
            f"{path} is not a folder; expected one with images in it or in its subfolders, a .tar archive, or a table "
            f"({', '.join(sorted(TABLES))})"
        )
    return _of_archives(path, files) if kind == ".tar" else _of_tables(path, files)


def _holds_images(path: Path) -> bool:
    try:
        return bool(find_images(path))
    except DmlError:
        return False


def _of_archives(path: Path, files: Sequence[Path]) -> StoredImages:
    """List the images of tar archives, by their headers.

    Raises:
        DmlError: if an archive is corrupt or compressed, or there are no images.
    """
    members: list[TarMember] = []
    for file in files:
        try:
            with tarfile.open(file, "r:") as archive:
                members += [
                    TarMember(file.absolute(), entry.name, entry.offset_data, entry.size)
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
    return StoredImages(str(path), members, names, [member.archive for member in members])


def _of_tables(path: Path, files: Sequence[Path]) -> ImageList:
    """List the images of tables, whose cells are encoded images or paths relative to the table's folder.

    Raises:
        DmlError: if a table can't be read, or has no such column.
    """
    rows: list[TableRow] = []
    names: list[str] = []
    paths: list[str] = []
    for file in files:
        column = _find_column(file)
        opened = _open_table(file.absolute(), column)
        if opened.holds_text:
            paths += opened.texts()
            continue
        rows += [TableRow(file.absolute(), column, row) for row in range(opened.num_rows)]
        names += [f"{file.name}/{row}" for row in range(opened.num_rows)]
    if not rows and not paths:
        raise DmlError(f"{path} holds no images: its tables have no rows")
    if rows and paths:
        raise DmlError(f"some tables in {path} hold images, and others paths; expected one kind")
    if paths:
        return PathImages(path, files[0].parent, paths)
    return StoredImages(str(path), rows, names, [row.table for row in rows])


class PathImages(FolderImages):
    """Image files that a table lists, in its order.

    Args:
        table: the table, or a folder of them.
        folder: where relative paths start.
        paths: the files.
    """

    def __init__(self, table: Path, folder: Path, paths: Sequence[str]) -> None:
        self.folder, self.title, self.places = folder, str(table), [folder]
        self.names = paths
        self.shown = [folder / path for path in paths]


# ---------------------------------------------------------------------------------------------------- tables


class _Table:
    """A column of a Parquet or Arrow file; it keeps the last group of rows that it read.

    Args:
        file: the file.
        column: the column.
    """

    def __init__(self, file: Path, column: str) -> None:
        with extra("tables", f"{file.name}"):
            import pyarrow as pa
            import pyarrow.parquet as pq
        self._group = -1
        self._cells: Any = None
        self._read: Callable[[int], Any]
        try:
            if file.suffix == ".parquet":
                opened = pq.ParquetFile(file, memory_map=True)
                counts = [opened.metadata.row_group(g).num_rows for g in range(opened.num_row_groups)]
                self._read = lambda group: opened.read_row_group(group, columns=[column]).column(0)
                schema = opened.schema_arrow
            else:
                stored = pa.ipc.open_file(pa.memory_map(str(file)))
                # A batch is a view of the mapped file: reading it costs nothing.
                counts = [stored.get_batch(b).num_rows for b in range(stored.num_record_batches)]
                self._read = lambda batch: stored.get_batch(batch).column(column)
                schema = stored.schema
        except (pa.ArrowException, OSError) as error:
            raise DmlError(f"can't read the table {file}: {error}") from error
        self._ends = np.cumsum([0, *counts])
        kind = schema.field(column).type
        self.holds_text = bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
        self.num_rows = int(self._ends[-1])

    def cell(self, row: int) -> Any:
        group = int(np.searchsorted(self._ends, row, side="right")) - 1
        if group != self._group:
            self._cells, self._group = self._read(group), group
        return self._cells[row - int(self._ends[group])].as_py()

    def texts(self) -> list[str]:
        return [text for group in range(len(self._ends) - 1) for text in self._read(group).to_pylist()]


@functools.lru_cache(maxsize=4)
def _open_table(file: Path, column: str) -> _Table:
    return _Table(file, column)


def _find_column(file: Path) -> str:
    with extra("tables", f"{file.name}"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        if file.suffix == ".parquet":
            names = pq.read_schema(file).names
        else:
            with pa.memory_map(str(file)) as mapped:
                names = pa.ipc.open_file(mapped).schema.names
    except (pa.ArrowException, OSError) as error:
        raise DmlError(f"can't read the table {file}: {error}") from error
    found = next((name for name in _COLUMNS if name in names), None)
    if found is None:
        raise DmlError(
            f"{file} has the columns {', '.join(names)}; expected encoded images in 'image' or 'bytes', or paths in "
            "'path' or 'file'"
        )
    return found

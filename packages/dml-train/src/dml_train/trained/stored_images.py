"""Images inside larger files: tar archives, as of WebDataset, and tables in Parquet or Arrow files.

Both are listed by reading only headers and metadata, and read at random: a machine reads only the images that it
embeds.
"""

from __future__ import annotations

import functools
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dml_core import DmlError
from dml_train.data.decoding import SUFFIXES
from dml_train.extras import extra
from dml_train.trained.images import ImageList, list_files, list_folder

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
    """List the images of a folder, a tar archive, a table, or of a folder of archives or tables without images.

    Raises:
        DmlError: if there are none.
    """
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
    """The column of images or paths in a Parquet or Arrow file; it keeps the last group of rows that it read.

    Raises:
        DmlError: if the file can't be read, or has no such column.
    """

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

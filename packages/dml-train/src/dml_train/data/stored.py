"""Images inside files: members of tar archives, cells of tables, and parts of images, read in any
order by an index.

Shapes: `N` images.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_core import DmlError, StoredImage
from dml_train.extras import extra

TABLES = frozenset({".parquet", ".arrow", ".feather"})
_MOST_CACHED = 1 << 27  # bytes of row groups that a process keeps


@dataclass(frozen=True, order=True, slots=True)
class TarMember:
    """A `StoredImage` in a tar archive: the name, and the offset and size of the content in
    bytes.
    """

    file: Path
    member: str
    offset: int
    size: int

    @property
    def name(self) -> str:
        """The image's name in messages."""
        return f"{self.file}: {self.member}"

    def read(self) -> bytes:
        """Read the encoded image."""
        with self.file.open("rb") as archive:
            archive.seek(self.offset)
            return archive.read(self.size)


@dataclass(frozen=True, order=True, slots=True)
class TableRow:
    """A `StoredImage` in a Parquet or Arrow file: a cell with an encoded image, or a struct with
    ``bytes``.
    """

    file: Path
    row: int
    column: str

    @property
    def name(self) -> str:
        """The image's name in messages."""
        return f"{self.file}, row {self.row}"

    def read(self) -> bytes:
        """Read the encoded image; raise DmlError if the cell is empty or the file can't be read."""
        cell = open_table(self.file).cell(self.row, self.column)
        if isinstance(cell, dict):  # as Hugging Face's data sets store images
            path = cell.get("path")
            cell = cell.get("bytes")
            if cell is None and path is not None:
                cell = (self.file.parent / path).read_bytes()
        if not isinstance(cell, bytes):
            raise DmlError(
                f"{self.name}: the column {self.column!r} contains {type(cell).__name__}; "
                "expected encoded images (bytes)"
            )
        return cell


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A `StoredImage` that is only a part of an image: the pixels in a box, which the decoder
    crops.

    The box is left, top, right, bottom in the upright image; right and bottom are excluded.
    """

    image: Item
    box: tuple[int, int, int, int]

    @property
    def file(self) -> Path:
        """The file that contains the image."""
        return file_of(self.image)

    @property
    def name(self) -> str:
        """The image's name in messages."""
        return f"{name_of(self.image)}, box {list(self.box)}"

    def __lt__(self, other: ImagePart) -> bool:
        return (self.image, self.box) < (other.image, other.box)

    def read(self) -> bytes:
        """Read the encoded image that contains the part."""
        return self.image.read_bytes() if isinstance(self.image, Path) else self.image.read()

    def check(self, size: tuple[int, int]) -> None:
        """Raise a `DmlError` if the box isn't inside the image, whose width and height are
        given.
        """
        left, top, right, bottom = self.box
        if not (0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]):
            raise DmlError(
                f"{name_of(self.image)}: the box {list(self.box)} is not inside the image of "
                f"{size[0]} × {size[1]} pixels; expected 0 <= left < right <= width and 0 <= top < "
                "bottom <= height"
            )


Stored = TarMember | TableRow | ImagePart
Item = Path | Stored  # hashable, and sorted like the images in the file


def file_of(image: Item) -> Path:
    """Return the file that contains an image."""
    return image if isinstance(image, Path) else image.file


def name_of(image: Path | StoredImage) -> str:
    """Return the name that identifies an image, for messages."""
    return str(image) if isinstance(image, Path) else image.name


def sort_images(images: Iterable[Item]) -> list[Any]:
    """Sort files by path, and images inside files by file and place, so that reading in order is
    fast.
    """
    # Use strings, since comparing a Path is much slower.
    return sorted(images, key=lambda image: str(image) if isinstance(image, Path) else image)


class PathTable(Sequence[Path]):
    """A compact sequence of paths, which takes 8 bytes per path besides the characters.

    A list of `Path` objects takes some 400 bytes per path in each loader process, and takes seconds
    to send.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self._bytes = b"".join(encoded)
        self._ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of paths."""
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        """Return a path, or a list of paths for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]  # this will raise an IndexError like a list
        begin = int(self._ends[place - 1]) if place else 0
        return Path(os.fsdecode(self._bytes[begin : int(self._ends[place])]))


class TableRows(Sequence[TableRow]):
    """The rows of tables with equal columns, as images."""

    def __init__(self, tables: Sequence[TableFile], column: str) -> None:
        self.files, self._column = [table.file for table in tables], column
        self.ends = np.cumsum([table.num_rows for table in tables])

    def __len__(self) -> int:
        """Return the number of rows of all tables."""
        return int(self.ends[-1])

    def __getitem__(self, row: Any) -> Any:
        """Return a row of all tables."""
        row = range(len(self))[
            row
        ]  # counts a negative row from the end, and raises an IndexError like a list
        place = int(np.searchsorted(self.ends, row, side="right"))
        return TableRow(
            self.files[place], int(row - (self.ends[place - 1] if place else 0)), self._column
        )


class TarMembers(Sequence[TarMember]):
    """Members of archives, as images.

    Args:
        files: the archives.
        ends: for each archive, the number of members in this and all earlier archives.
        names: (N,) the names of the members.
        places: (N, 2) offset and size of the members.
    """

    def __init__(
        self,
        files: Sequence[Path],
        ends: Sequence[int],
        names: PathTable,
        places: npt.NDArray[np.int64],
    ) -> None:
        self.files, self.ends, self._names, self._places = files, np.array(ends), names, places

    def __len__(self) -> int:
        """Return the number of members of all archives."""
        return len(self._names)

    def __getitem__(self, index: Any) -> Any:
        """Return a member."""
        index = range(len(self))[index]
        name = self._names[index].as_posix()
        offset, size = self._places[index].tolist()
        return TarMember(
            self.files[int(np.searchsorted(self.ends, index, side="right"))], name, offset, size
        )


class Selection(Sequence[Item]):
    """Some images of a long sequence, looked up on request; 8 bytes per image, also when sent to a
    process.

    Args:
        images: all images.
        rows: (N,) the selected indices.
        boxes: (len(images), 4) the parts to crop; None for complete images.
    """

    def __init__(
        self,
        images: Sequence[Item],
        rows: npt.NDArray[np.int64],
        boxes: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.images, self.rows, self.boxes = images, rows, boxes

    def __len__(self) -> int:
        """Return the number of selected images, N."""
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        """Return an image, or a selection for a slice or indices."""
        row = self.rows[index]
        if isinstance(row, np.ndarray):
            return Selection(self.images, row, self.boxes)
        image = self.images[int(row)]
        return image if self.boxes is None else ImagePart(image, tuple(self.boxes[row].tolist()))


class TableFile:
    """A Parquet or Arrow file, also in the stream format of `datasets`; groups of rows are read
    when requested.

    Raise a `DmlError` if the file can't be read.
    """

    def __init__(self, file: Path) -> None:
        with extra("tables", file.name):
            import pyarrow as pa
            import pyarrow.parquet as pq
        self.file = file
        self._read: Callable[[int, list[str]], Any]
        self._may_contain_nulls: Callable[[int, str], bool] = lambda group, column: True
        try:
            if file.suffix == ".parquet":
                parquet = pq.ParquetFile(file, memory_map=True)
                self.schema = parquet.schema_arrow
                counts = [
                    parquet.metadata.row_group(group).num_rows
                    for group in range(parquet.num_row_groups)
                ]
                self._read = lambda group, columns: parquet.read_row_group(
                    group, columns=columns, use_threads=False
                )
                self._may_contain_nulls = lambda group, column: any(
                    leaf.path_in_schema in (column, f"{column}.bytes")
                    and leaf.statistics is not None
                    and leaf.statistics.null_count
                    for leaf in map(
                        parquet.metadata.row_group(group).column,
                        range(parquet.metadata.num_columns),
                    )
                )
            else:
                mapped = pa.memory_map(str(file))
                if mapped.read(6) == b"ARROW1":
                    arrow = pa.ipc.open_file(mapped)
                    get, groups = arrow.get_batch, range(arrow.num_record_batches)
                else:
                    mapped.seek(0)
                    arrow = pa.ipc.open_stream(mapped)
                    batches = list(arrow)
                    get, groups = batches.__getitem__, range(len(batches))
                self.schema = arrow.schema
                # Batches are views of the mapped file, so reading a batch only to count rows is
                # free.
                counts = [get(batch).num_rows for batch in groups]
                self._read = lambda batch, columns: pa.Table.from_batches([get(batch)]).select(
                    columns
                )
        except (pa.ArrowException, OSError) as error:
            raise DmlError(f"can't read the table {file}: {error}") from error
        self._ends = np.cumsum([0, *counts])
        self.num_rows = int(self._ends[-1])

    def read_columns(self, columns: list[str]) -> Iterator[Any]:
        """Yield the groups of rows with only these columns, as Arrow tables."""
        for group in range(len(self._ends) - 1):
            yield self._read(group, columns)

    def find_nulls(self, column: str) -> npt.NDArray[np.bool_]:
        """Return whether each row's cell is null, or a struct with neither bytes nor a path,
        (num_rows,).
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        found = np.zeros(self.num_rows, np.bool_)
        for group in filter(
            lambda group: self._may_contain_nulls(group, column), range(len(self._ends) - 1)
        ):
            cells = self.read_cells(column, group)
            values = [cells]
            if pa.types.is_struct(cells.type):
                named = {field.name for field in cells.type}
                values = [
                    pc.struct_field(cells, name) for name in ("bytes", "path") if name in named
                ]
            nulls = [pc.is_null(value).to_numpy(zero_copy_only=False) for value in values]
            found[self._ends[group] : self._ends[group + 1]] = np.logical_and.reduce(nulls)
        return found

    def cell(self, row: int, column: str) -> Any:
        """Read a cell; a group of rows is read at once, and the latest groups are cached."""
        group = int(np.searchsorted(self._ends, row, side="right")) - 1
        return _cache.cells(self, column, group)[row - int(self._ends[group])].as_py()

    def read_cells(self, column: str, group: int) -> Any:
        """Read a column's cells in a group of rows; raise a `DmlError` if the file is damaged."""
        try:
            return self._read(group, [column]).column(0)
        except (OSError, ValueError) as error:  # pyarrow's errors are among these
            raise DmlError(f"can't read the table {self.file}: {error}") from error


class _RowGroups:
    """The row groups that were read last, up to `_MOST_CACHED` bytes, for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[TableFile, str, int], Any] = OrderedDict()
        self._bytes = 0

    def cells(self, table: TableFile, column: str, group: int) -> Any:
        key = table, column, group
        with self._lock:  # pyarrow's readers of a file can't be shared by threads
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            cells = self._kept[key] = table.read_cells(column, group)
            self._bytes += cells.nbytes
            while self._bytes > _MOST_CACHED and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
            return cells


_cache = _RowGroups()
open_table = functools.lru_cache(maxsize=256)(TableFile)

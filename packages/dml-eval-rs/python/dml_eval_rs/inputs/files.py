"""Arrays in files: .npy, the formats of the nearest-neighbour benchmarks, HDF5 and Parquet.

A file is mapped into memory if the format allows it. Headers are compared with the file's size
first.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs.conversion import to_array, to_labels

_Array = npt.NDArray[Any]

_BINS = {".fbin": "<f4", ".u8bin": "u1", ".i8bin": "i1", ".ibin": "<i4"}
_VECS = {".fvecs": "<f4", ".bvecs": "u1", ".ivecs": "<i4"}
_DAMAGED = "the file is truncated or of a different format"


def load_array(path: str | os.PathLike[str]) -> _Array:
    """Load an array from a file, mapped into memory if the format allows it.

    The suffix decides how to read the file; other suffixes are read as .npy:

    - ``.npy``: any numbers or strings, without Python objects.
    - ``.fbin``, ``.u8bin``, ``.i8bin``, ``.ibin`` (big-ann-benchmarks, DiskANN): N and D as uint32,
      then N·D float32, uint8, int8 or int32. Distances that follow the indices in ``.ibin`` are
      ignored.
    - ``.fvecs``, ``.bvecs``, ``.ivecs`` (TEXMEX): per row, D as int32, then D float32, uint8 or
      int32.
    - ``.hdf5``, ``.h5`` (ann-benchmarks; needs h5py): ``sift.hdf5:train`` names the data set, if
      there is more than one. Chunked or compressed data sets are read into memory.
    - ``.parquet`` (needs pyarrow): ``items.parquet:embedding`` names the column, if there is more
      than one. Columns of lists become matrices, in memory.

    Args:
        path: the file's path.

    Returns:
        The array, (N, D) for vectors; read-only if mapped.

    Raises:
        FileNotFoundError: if the file doesn't exist.
        ImportError: if the format needs a package that is not installed.
        ValueError: if the file is of a different format or damaged, or the size does not agree with
            the header.
    """
    file, part = split_part(path)
    suffix = file.suffix.lower()
    if not file.is_file():
        if file.exists():
            raise ValueError(
                f"the file {file} is not a regular file; expected a {suffix or '.npy'} file"
            )
        raise FileNotFoundError(
            f"the file {file} doesn't exist; expected a {suffix or '.npy'} file"
        )
    return (
        _PART_READERS[suffix](file, part)
        if suffix in _PART_READERS
        else _READERS.get(suffix, _map_npy)(file)
    )


def split_part(path: str | os.PathLike[str]) -> tuple[Path, str | None]:
    """Split a path such as ``sift.hdf5:train`` into the file and the name of the data set or
    column, if given.
    """
    file, colon, part = os.fspath(path).rpartition(":")
    if colon and Path(file).suffix.lower() in _PART_READERS:
        return Path(file), part
    return Path(path), None


def with_part(path: str, part: str) -> str:
    """Add the name of a data set to the path of an HDF5 file, unless the path has a name."""
    file, given = split_part(path)
    return f"{path}:{part}" if given is None and file.suffix.lower() in (".hdf5", ".h5") else path


def stated_similarity(path: str) -> str | None:
    """Return the similarity for the distance that an HDF5 file of ann-benchmarks states, or
    None.
    """
    file, _ = split_part(path)
    if file.suffix.lower() not in (".hdf5", ".h5"):
        return None
    with _import("h5py", file, "hdf5").File(file, "r") as opened:
        distance = opened.attrs.get("distance")
    return {"euclidean": "euclidean", "angular": "cosine", "ip": "dot"}.get(str(distance))


def check_writable(path: Path, known: tuple[str, ...] = (".npy", *_BINS, *_VECS)) -> None:
    """Raise a ValueError if the suffix is not known, or the folder does not exist."""
    if path.suffix.lower() not in known:
        raise ValueError(f"{path} has the suffix {path.suffix!r}; expected {', '.join(known)}")
    if not path.parent.is_dir():
        raise ValueError(f"the folder {path.parent} doesn't exist; create the folder first")


def save_array(path: Path, array: _Array) -> None:
    """Write an array (N, D) to a file in the format of the suffix. The file appears when it is
    complete.
    """
    suffix = path.suffix.lower()
    dtype = np.dtype(_BINS.get(suffix) or _VECS.get(suffix) or array.dtype)
    if array.size and dtype.kind == "i" and array.max() > np.iinfo(dtype).max:
        raise ValueError(
            f"{path} stores {dtype.name}, but the array has {array.max()}; expected a .npy file"
        )
    with replacing(path) as file:
        if suffix == ".npy":
            np.save(file, array)
        elif suffix in _BINS:
            np.array(array.shape, "<u4").tofile(file)
            array.astype(dtype).tofile(file)
        else:
            rows = np.empty(len(array), _row(array.shape[1], dtype.str))
            rows["columns"], rows["numbers"] = array.shape[1], array
            rows.tofile(file)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Any]:
    """Open a file that replaces `path` at the end, or is deleted after an error or Ctrl-C."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _row(columns: int, dtype: str) -> np.dtype[Any]:
    """Return the dtype of a row in ``.fvecs``, ``.bvecs`` or ``.ivecs``."""
    return np.dtype([("columns", "<i4"), ("numbers", dtype, (columns,))])


def _map_npy(path: Path) -> _Array:
    """Map a .npy file, but do not unpickle objects."""
    with path.open("rb") as file:
        first = file.read(6)
    if first.startswith(b"PK"):
        raise ValueError(
            f"{path} is an archive; expected a .npy file: use numpy.save for one array"
        )
    if first not in (b"", b"\x93NUMPY"):  # an empty file is reported as damaged below
        raise ValueError(
            f"{path} is not a .npy file; expected an array saved by numpy.save: for a text file "
            "with one label per line, use numpy.save('labels.npy', "
            "pathlib.Path('labels.txt').read_text().splitlines())"
        )
    try:
        array: _Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # if the header is damaged, numpy raises a dozen types of errors
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            raise ValueError(
                f"{path} contains Python objects; expected numbers or strings: save "
                "array.astype(int) or array.astype(str) instead"
            ) from error
        raise ValueError(
            f"{path} is not an intact .npy file of numbers or strings: {error}"
        ) from error
    return array


def _map_bin(path: Path, *, dtype: str) -> _Array:
    """Map a file that begins with N and D."""
    size = path.stat().st_size
    if size < 8:
        raise ValueError(
            f"{path} has {size} bytes; expected a header of 8 bytes, the numbers of rows and "
            "columns"
        )
    rows, columns = np.fromfile(path, "<u4", 2).tolist()
    wanted = 8 + rows * columns * np.dtype(dtype).itemsize
    has_distances = path.suffix.lower() == ".ibin" and size == 2 * wanted - 8
    if size != wanted and not has_distances:
        raise ValueError(
            f"{path} has {size:,} bytes; expected {wanted:,}, because the header says {rows:,} "
            f"rows of {columns:,} numbers of type {np.dtype(dtype).name}: {_DAMAGED}"
        )
    return _map(path, np.dtype(dtype), 8, (rows, columns))


def _map_vecs(path: Path, *, dtype: str) -> _Array:
    """Map a file of rows that each begin with D."""
    size = path.stat().st_size
    columns = int(np.fromfile(path, "<i4", 1)[0]) if size >= 4 else 0
    if columns < 1:
        raise ValueError(
            f"{path} has {size} bytes and begins with {columns}; expected the length of the first "
            "row"
        )
    row = _row(columns, dtype)
    if size % row.itemsize:
        raise ValueError(
            f"{path} has {size:,} bytes; expected a multiple of {row.itemsize}, because the first "
            f"row has {columns:,} numbers of type {np.dtype(dtype).name}: {_DAMAGED}"
        )
    rows = _map(path, row, 0, (size // row.itemsize,))
    wrong = rows["columns"] != columns
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(
            f"{path} row {first} has length {rows['columns'][first]}; expected {columns}, like row "
            "0"
        )
    numbers: _Array = rows["numbers"]
    return numbers


def _map(path: Path, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...]) -> _Array:
    """Map an array of a file; an empty array can't be mapped."""
    return np.memmap(path, dtype, "r", offset, shape) if 0 not in shape else np.zeros(shape, dtype)


def _read_hdf5(path: Path, part: str | None) -> _Array:
    """Map a data set if it lies in one piece, otherwise read it."""
    h5py = _import("h5py", path, "hdf5")
    try:
        with h5py.File(path, "r") as file:
            names = [name for name, entry in file.items() if isinstance(entry, h5py.Dataset)]
            data = file[_choose(path, part, names, "data sets")]
            offset = None if file.userblock_size or data.external else data.id.get_offset()
            if offset is None or data.dtype.kind not in "fiu":
                array: _Array = data[...]
                return array
            return _map(path, data.dtype, offset, data.shape)
    except OSError as error:
        raise ValueError(f"{path} is not an intact HDF5 file: {error}") from error


def _read_parquet(path: Path, part: str | None) -> _Array:
    """Read a column: lists as a matrix, anything else as labels."""
    pyarrow, parquet = (
        _import(module, path, "parquet") for module in ("pyarrow", "pyarrow.parquet")
    )
    try:
        chosen = _choose(path, part, parquet.read_schema(path).names, "columns")
        column = parquet.read_table(path, columns=[chosen])[chosen]
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path} is not an intact Parquet file: {error}") from error
    is_matrix = hasattr(column.type, "value_type")
    return (
        to_array(column, f"{path}:{chosen}", 2)
        if is_matrix
        else to_labels(column, f"{path}:{chosen}")
    )


def _import(module: str, path: Path, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"{path} can't be read, because {package} isn't installed: use pip install "
            f"'dml-eval-rs[{extra}]'"
        ) from error


def _choose(path: Path, part: str | None, names: list[str], kind: str) -> str:
    chosen = names[0] if part is None and len(names) == 1 else part
    if chosen not in names:
        came = f"{path} has the {kind} {', '.join(names) or '(none)'}"
        raise ValueError(
            f"{came}; expected the name of one of them: {path}:NAME"
            + (f", not {part}" if part else "")
        )
    return str(chosen)


_READERS: dict[str, Callable[[Path], _Array]] = {
    ".npy": _map_npy,
    **{suffix: partial(_map_bin, dtype=dtype) for suffix, dtype in _BINS.items()},
    **{suffix: partial(_map_vecs, dtype=dtype) for suffix, dtype in _VECS.items()},
}
# Readers of files with more than one array, which take the name of the data set or column.
_PART_READERS: dict[str, Callable[[Path, str | None], _Array]] = {
    ".hdf5": _read_hdf5,
    ".h5": _read_hdf5,
    ".parquet": _read_parquet,
}

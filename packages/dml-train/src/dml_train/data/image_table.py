"""Tables of images: Parquet and Arrow files, and WebDataset archives, with the columns image and
label.

The columns split, group and box are optional.

Shapes: `N` rows of all files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml_core import DmlError, nearest
from dml_train.data.parts import SPLITS, Classes, Parts, check_split, divide
from dml_train.data.stored import (
    TABLES,
    Item,
    PathTable,
    Selection,
    TableFile,
    TableRows,
    TarMembers,
    name_of,
    open_table,
)
from dml_train.data.webdataset import read_archives
from dml_train.extras import extra

_MOST_LISTED = 5  # rows in a message
_SIDES = 4  # how many numbers a box has
_HUB = "hf:"  # the prefix of a source that `datasets` loads


def read_image_table(
    source: str,
    image: str = "image",
    label: str = "label",
    split: str = "split",
    group: str = "group",
    box: str = "box",
    root: str = "",
    train_fraction: float = 0.5,
    split_seed: int = 0,
) -> Parts:
    """List the images of Parquet or Arrow files or WebDataset archives by their labels; images
    aren't read.

    Classes are sorted by name, images are in the order of the rows. A label is a string or an
    integer; the names that `datasets` stores with the integers of a ``ClassLabel`` are used.

    Args:
        source: a file (.parquet, .arrow or .feather), a folder of such files, or a folder that
            `save_to_disk` of Hugging Face's `datasets` wrote; or a WebDataset archive (.tar, not
            compressed), or a folder of archives, with columns as in `read_archives`; or ``hf:NAME``
            or ``hf:NAME:CONFIGURATION``, which `datasets` loads from the Hub or a local folder.
        image: the column with images: encoded (bytes, or a struct with ``bytes``), or paths.
        label: the column with the classes.
        split: the column with ``train`` and ``test``, or ``train``, ``query`` and ``gallery``. If
            it is missing, names of files (``train-00000-of-00004.parquet``) and folders
            (``train/…``) are used, otherwise classes are shuffled and split; ``""`` always does so.
        group: the column with an image's group, for example the camera; if it is missing, groups
            aren't defined.
        box: the column with four numbers, left, top, right and bottom in pixels of the upright
            image; right and bottom are excluded. If it exists, images are cropped to it first, and
            their headers are read now.
        root: the folder that paths are relative to; default: the folder of `source`.
        train_fraction, split_seed: see `read_image_folder`; ignored if there are splits.

    Raises:
        DmlError: if a file or column is missing, or has a different type; if a value is missing,
            two rows name the same file, or a file is missing (the message contains the row); or if
            the splits are invalid.
        ValueError: if a number is out of range.
    """
    place = Path(source).expanduser()
    files = list_tables(source)
    names = {"label": label, "split": split, "group": group, "box": box}
    read = _read_archives if next(iter(files)).suffix == ".tar" else _read_tables
    table = read([*files], image, names)
    boxes = table.boxes("box") if "box" in table.columns else None
    images: Sequence[Item] = table.rows
    if table.paths is not None:
        folder = Path(root or (place if place.is_dir() else place.parent)).expanduser()
        images = _find_files(table, folder, boxes)
    classes = table.texts("label")
    if "split" in table.columns:
        splits = table.texts("split")
    else:
        named = [*files.values()]
        if not split or "train" not in named or len(set(named)) == 1:
            named = [""] * len(files)
        distinct, codes = np.unique(named, return_inverse=True)
        splits = _Texts(np.repeat(codes, np.diff(table.rows.ends, prepend=0)), distinct.tolist())
    by_split: dict[str, Classes] = {}
    for code, name in enumerate(splits.names):
        if name:
            check_split(name, name_of(table.rows[int(np.argmax(splits.codes == code))]))
        rows = np.flatnonzero(splits.codes == code)
        rows = rows[np.argsort(classes.codes[rows], kind="stable")]
        found, starts = np.unique(classes.codes[rows], return_index=True)
        by_split[name] = {
            classes.names[c]: Selection(images, part, boxes)
            for c, part in zip(found.tolist(), np.split(rows, starts[1:]))
        }
    parts = divide(by_split, train_fraction, split_seed, place, "set dataset.split = ''")
    if "group" not in table.columns:
        return parts
    groups = table.texts("group")
    every = Selection(images, np.arange(len(images)), boxes)
    return parts._replace(
        groups={row: groups.names[g] for row, g in zip(every, groups.codes.tolist())}
    )


def list_tables(source: str) -> dict[Path, str]:
    """Map the tables of `source`, sorted by path, to a possible split: the folder, or the start of
    the name.

    Only the files in ``state.json`` belong to a folder that `save_to_disk` wrote. Raise a
    `DmlError` if there are no tables, or types of files are mixed.
    """
    if source.startswith(_HUB):
        return _load_by_datasets(source.removeprefix(_HUB))
    place = Path(source).expanduser()
    inside = place.rglob("*") if place.is_dir() else [place] if place.is_file() else []
    found = sorted(file for file in inside if file.suffix in {".tar", *TABLES})
    for state in place.rglob("state.json") if place.is_dir() else ():
        listed = {entry["filename"] for entry in json.loads(state.read_text())["_data_files"]}
        found = [file for file in found if file.parent != state.parent or file.name in listed]
    kinds = sorted({file.suffix for file in found})
    if len(kinds) != 1:
        what = f"contains {' and '.join(kinds)} files" if kinds else "contains no table"
        if not place.is_dir():
            what = "is not a table" if place.exists() else "doesn't exist"
        raise DmlError(
            f"{place} {what}; expected a file ({', '.join(sorted(TABLES))}, or .tar without "
            "compression), or a folder of files of one type"
        )
    starts = [re.split(r"[-_.\d]", file.name)[0] for file in found]
    of_files = (place, place / "data", place.parent)  # the Hub's Parquet files are in data
    return {
        file: start if start in SPLITS or file.parent in of_files else file.parent.name
        for file, start in zip(found, starts)
    }


def _load_by_datasets(name: str) -> dict[Path, str]:
    """Load a data set by Hugging Face's `datasets`, as ``NAME`` or ``NAME:CONFIGURATION``; list the
    files by split.
    """
    with extra("hf", f"the source {_HUB}{name}"):
        from datasets import load_dataset
    repository, _, configuration = name.partition(":")
    try:
        splits = load_dataset(repository, configuration or None)
    except Exception as error:  # the library, the Hub and the network raise anything
        raise DmlError(f"datasets can't load {name!r}: {type(error).__name__}: {error}") from error
    found = {
        Path(file["filename"]): split for split, rows in splits.items() for file in rows.cache_files
    }
    if not found:
        raise DmlError(
            f"datasets keeps {name!r} in memory; use save_to_disk, and the folder as dataset.source"
        )
    return found


class _Texts(NamedTuple):
    """A column of strings: ``names[codes[i]]`` is the string of row i; names are sorted and
    distinct.
    """

    codes: npt.NDArray[np.int64]  # (N,)
    names: Sequence[str]


class _Table(NamedTuple):
    """The columns of a table besides the images."""

    rows: TableRows | TarMembers  # (N,)
    columns: Mapping[str, tuple[str, Any]]  # meaning → name in the table, values (N,)
    paths: Any = None  # (N,) if the table contains paths instead of images

    def texts(self, meaning: str) -> _Texts:
        """Return a column of strings or integers; raise a `DmlError` for other types, null or empty
        text.
        """
        import pyarrow.types as types

        name, values = self.columns[meaning]
        kind = values.type.value_type if types.is_dictionary(values.type) else values.type
        if not (types.is_integer(kind) or _is_text(kind)):
            raise DmlError(
                f"the column {name!r} of {self.rows.files[0]} contains {kind}; expected strings or "
                "integers"
            )
        encoded = values if types.is_dictionary(values.type) else values.dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        codes = encoded.indices.fill_null(-1).to_numpy().astype(np.int64)
        self.check_rows(
            np.isin(codes, [-1, *(i for i, value in enumerate(distinct) if value in ("", None))]),
            name,
        )
        names = sorted({str(value) for value in distinct})
        place = {text: i for i, text in enumerate(names)}
        return _Texts(
            np.array([place[str(value)] for value in distinct], dtype=np.int64)[codes], names
        )

    def boxes(self, meaning: str) -> npt.NDArray[np.int64]:
        """Return a column of boxes, (N, 4), rounded; raise a `DmlError` if a box isn't four numbers
        or is empty.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        name, values = self.columns[meaning]
        try:
            lengths = pc.list_value_length(values).fill_null(0).to_numpy()
            self.check_rows(lengths != _SIDES, name, "not four numbers: left, top, right, bottom")
            sides = (
                values.flatten().cast(pa.float64()).fill_null(np.nan).to_numpy().reshape(-1, _SIDES)
            )
        except pa.ArrowException as error:
            raise DmlError(
                f"the column {name!r} contains {values.type}; expected lists of four numbers: "
                "left, top, right, bottom"
            ) from error
        with np.errstate(invalid="ignore"):
            boxes: npt.NDArray[np.int64] = np.rint(sides).astype(np.int64)
        left, top, right, bottom = boxes.T
        inside = (
            (left >= 0)
            & (top >= 0)
            & (left < right)
            & (top < bottom)
            & np.isfinite(sides).all(axis=1)
        )
        self.check_rows(
            ~inside,
            name,
            "not a box: left, top, right, bottom with 0 <= left < right, 0 <= top < bottom",
        )
        return boxes

    def check_rows(self, bad: npt.NDArray[np.bool_], column: str, what: str = "empty") -> None:
        """Raise a `DmlError` with the rows that are bad, and the reason."""
        if not bad.any():
            return
        rows = np.flatnonzero(bad).tolist()
        others = ", ".join(name_of(self.rows[row]) for row in rows[1:_MOST_LISTED])
        also = (
            f" ({len(rows):,} rows, also {others}{', …' * (len(rows) > _MOST_LISTED)})"
            if others
            else ""
        )
        raise DmlError(
            f"{name_of(self.rows[rows[0]])}: the column {column!r} is {what}{also}; correct or "
            "remove such rows"
        )


def _read_tables(files: Sequence[Path], image: str, names: Mapping[str, str]) -> _Table:
    """Read columns by meaning; only columns with the default name can be missing, except the image
    and the label.
    """
    open_table.cache_clear()  # a file may have changed since this process read it
    tables = [open_table(file) for file in files]
    import pyarrow as pa

    schema = tables[0].schema
    for meaning, name in {"image": image, **names}.items():
        needed = meaning in ("image", "label") or name not in ("", meaning)
        if needed and name not in schema.names:
            raise DmlError(
                f"{files[0]} lacks the column {name!r}{nearest(name, schema.names)} it has: "
                f"{', '.join(schema.names)}; dataset.{meaning} names the column"
            )
    kind = schema.field(image).type
    content = (
        kind.field("bytes").type
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
        else kind
    )
    is_text = _is_text(kind)
    if not is_text and str(content) not in ("binary", "large_binary", "binary_view"):
        raise DmlError(
            f"the column {image!r} of {files[0]} contains {kind}; expected encoded images (binary, "
            "or a struct with bytes), or paths (string)"
        )
    kept = {meaning: name for meaning, name in names.items() if name in schema.names}
    wanted = list(dict.fromkeys([*kept.values(), *([image] if is_text else [])]))
    try:
        if differs := next(
            (
                t
                for t in tables
                if image not in t.schema.names or t.schema.field(image).type != kind
            ),
            None,
        ):
            raise KeyError(f"{image!r} of {differs.file.name} isn't {kind}")
        every = pa.concat_tables(
            [group for table in tables for group in _read_columns(table, wanted, names["label"])]
        )
    except (pa.ArrowException, KeyError) as error:
        raise DmlError(
            f"the columns of {files[0]} and another table in its folder differ: {error}"
        ) from error
    columns = {
        meaning: (name, every.column(name).combine_chunks()) for meaning, name in kept.items()
    }
    table = _Table(
        TableRows(tables, image),
        columns,
        every.column(image).combine_chunks() if is_text else None,
    )
    if is_text:
        table.check_rows(table.paths.is_null().to_numpy(zero_copy_only=False), image)
    else:
        table.check_rows(np.concatenate([source.find_nulls(image) for source in tables]), image)
    return table


def _read_archives(files: Sequence[Path], image: str, names: Mapping[str, str]) -> _Table:
    """Read the columns of WebDataset archives by meaning."""
    with extra("tables", "the data set 'table'"):
        import pyarrow as pa

    rows, columns = read_archives(files, image, names)
    read = {}
    for meaning, values in columns.items():
        try:
            read[meaning] = (names[meaning], pa.array(values))
        except pa.ArrowException as error:
            raise DmlError(
                f"the column {names[meaning]!r} of {files[0].parent} has mixed types: {error}"
            ) from error
    return _Table(rows, read)


def _read_columns(table: TableFile, columns: list[str], label: str) -> Iterator[Any]:
    """Yield groups of rows; if `datasets` stored names of integer labels, replace labels by names
    or null.
    """
    import pyarrow as pa

    about = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
    names = about.get("info", {}).get("features", {}).get(label, {}).get("names")
    for group in (table.schema.empty_table().select(columns), *table.read_columns(columns)):
        if names is not None:
            codes = group.column(label).combine_chunks().fill_null(-1).to_numpy()
            known = np.where((codes >= 0) & (codes < len(names)), codes, len(names))
            texts = pa.array([*names, None], pa.string()).take(pa.array(known))
            group = group.set_column(columns.index(label), label, texts)
        yield group


def _find_files(table: _Table, folder: Path, boxes: npt.NDArray[np.int64] | None) -> Sequence[Path]:
    """Return the paths in a table; raise a `DmlError` if files are missing, or two rows name the
    same file.
    """
    paths = PathTable(folder / path for path in table.paths.to_pylist())
    names = [str(path) for path in paths]
    first_row: dict[tuple[str, ...], int] = {}
    for row, name in enumerate(names):
        key = (name,) if boxes is None else (name, str(boxes[row]))
        if row != (first := first_row.setdefault(key, row)):
            raise DmlError(
                f"{name_of(table.rows[first])} and {name_of(table.rows[row])} both name {name}; a "
                "duplicate image would match itself: remove one of the rows"
            )
    if missing := [row for row, name in enumerate(names) if not os.path.isfile(name)]:  # noqa: PTH113
        raise DmlError(
            f"{len(missing):,} of the {len(names):,} images are missing, e.g. {names[missing[0]]} "
            f"({name_of(table.rows[missing[0]])}); paths are relative to root = {folder}"
        )
    return paths


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view")

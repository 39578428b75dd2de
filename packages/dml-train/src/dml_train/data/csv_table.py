"""A table of images: a CSV file with the columns path, label and, optionally, split and group."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path

from dml_core import DmlError, nearest
from dml_train.data.parts import Parts, check_split, divide


def read_csv_table(
    root: str, table: str = "images.csv", train_fraction: float = 0.5, split_seed: int = 0
) -> Parts:
    """List the images of a CSV file; classes are sorted by name, images are in the order of the
    lines.

    The first line names the columns ``path``, ``label`` and, optionally, ``split`` and ``group``;
    others are ignored. Values of ``split`` must be ``train`` and ``test``, or ``train``, ``query``
    and ``gallery``; by default, classes are shuffled and split. ``group`` is an image's group, for
    example the camera (see `dml_core.GroupedSplit`).

    Args:
        root: the folder of the images; paths are relative to it.
        table: the CSV file, in UTF-8, relative to `root`.
        train_fraction, split_seed: see `read_image_folder`; ignored if a column ``split`` is given.

    Raises:
        DmlError: if the file or a column is missing; if a value is empty, or an image is missing or
            a duplicate (the message contains the line number); or if the splits are invalid, see
            `read_image_folder`.
        ValueError: if a number is out of range.
    """
    folder = Path(root).expanduser()
    file = folder / Path(table).expanduser()
    classes: dict[str, dict[str, list[Path]]] = {}
    line_of: dict[str, int] = {}  # keyed by string, since hashing a Path is much slower
    groups: dict[Path, str] = {}
    for line, row in _read_rows(file):
        for column, value in row.items():
            if not value:
                raise DmlError(
                    f"{file}, line {line}: the column {column!r} is empty; expected a {column} for "
                    "every image"
                )
        image = folder / row["path"]
        if line != (first := line_of.setdefault(str(image), line)):
            raise DmlError(
                f"{file}, lines {first} and {line} both name {row['path']!r}; a duplicate image "
                "would match itself: remove one of the lines"
            )
        part = row.get("split", "")
        if "split" in row:
            check_split(part, f"{file}, line {line}")
        classes.setdefault(part, {}).setdefault(row["label"], []).append(image)
        if "group" in row:
            groups[image] = row["group"]
    if missing := [image for image in line_of if not os.path.isfile(image)]:  # noqa: PTH113
        raise DmlError(
            f"{len(missing)} of the {len(line_of)} images of {file} are missing, e.g. {missing[0]} "
            f"(line {line_of[missing[0]]}); paths are relative to root = {folder}"
        )
    parts = divide(classes, train_fraction, split_seed, file, "remove the column 'split'")
    return parts._replace(groups=groups) if groups else parts


def _read_rows(file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line number and the values of the used columns per row."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, strict=True)
            columns = reader.fieldnames or []
            for column in ("path", "label"):
                if column not in columns:
                    raise DmlError(
                        f"{file} lacks the column {column!r}{nearest(column, columns)} the first "
                        "line must name path and label, and optionally split and group; it names: "
                        f"{', '.join(columns) or 'no columns'}"
                    )
            used = [column for column in ("path", "label", "split", "group") if column in columns]
            for row in reader:
                yield reader.line_num, {column: row[column] or "" for column in used}
    except OSError as error:
        raise DmlError(
            f"can't read the table {file}: {error.strerror}; expected a CSV file with the columns "
            "path and label"
        ) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise DmlError(f"{file} is not a CSV file in UTF-8: {error}") from error

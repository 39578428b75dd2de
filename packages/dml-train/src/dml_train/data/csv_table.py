"""A table of images: a CSV file with the columns path, label and, if wanted, split."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from dml_core import DmlError, nearest
from dml_train.data.parts import Parts, apart, check_fraction, refuse_unfit

_SPLITS = {"train": "train", "test": "test", "query": "test", "gallery": "gallery"}


def read_csv_table(
    root: str, table: str = "images.csv", train_fraction: float = 0.5, split_seed: int = 0
) -> Parts:
    """The images that a CSV file names; classes in the order of their names, images in that of the lines.

    The first line names the columns: ``path`` and ``label``, and perhaps ``split``, with ``train`` and ``test``, or
    ``train``, ``query`` and ``gallery``. Without it the classes are split as those of an image folder. Further
    columns are passed over.

    Args:
        root: the folder that paths are relative to.
        table: the CSV file, in UTF-8, relative to `root`.
        train_fraction, split_seed: see `read_image_folder`; not used if the table has a column ``split``.

    Raises:
        DmlError: no such file, a column that is missing, a value that is empty, an image that isn't there or comes
            twice, with the line's number; and what `read_image_folder` refuses.
        ValueError: a number out of its range.
    """
    check_fraction(train_fraction)
    folder = Path(root).expanduser()
    file = folder / Path(table).expanduser()
    classes: dict[str, dict[str, list[Path]]] = {}
    line_of: dict[Path, int] = {}
    for line, row in _rows(file):
        for column, value in row.items():
            if not value:
                raise DmlError(f"{file}, line {line}: the column {column!r} is empty; give every image one")
        image = folder / row["path"]
        if line != line_of.setdefault(image, line):
            raise DmlError(
                f"{file}, lines {line_of[image]} and {line} both name {row['path']!r}; an image that comes twice "
                "would find itself: remove one of the lines"
            )
        part = row.get("split", "")
        if "split" in row and part not in _SPLITS:
            raise DmlError(
                f"{file}, line {line}: split is {part!r}{nearest(part, _SPLITS)} expected one of: {', '.join(_SPLITS)}"
            )
        classes.setdefault(part, {}).setdefault(row["label"], []).append(image)
    missing = [image for image in line_of if not image.is_file()]
    if missing:
        raise DmlError(
            f"{len(missing)} of the {len(line_of)} images that {file} names aren't there, e.g. {missing[0]} (line "
            f"{line_of[missing[0]]}); paths are relative to root = {folder}"
        )
    in_order = {part: dict(sorted(found.items())) for part, found in classes.items()}
    if "" in in_order or not in_order:
        parts = apart(in_order.get("", {}), train_fraction, split_seed, str(file))
    elif {"test", "query"} <= in_order.keys() or ("query" in in_order) != ("gallery" in in_order):
        raise DmlError(
            f"{file} has the splits {', '.join(in_order)}; expected train and test, or train, query and gallery"
        )
    else:
        by_part = {_SPLITS[split]: found for split, found in in_order.items()}
        parts = Parts(by_part.get("train", {}), by_part.get("test", {}), by_part.get("gallery"))
    refuse_unfit(parts, {part: f"the {part} part of {file}" for part in parts.named()})
    return parts


def _rows(file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The lines of the table with their numbers; of the columns those that are used."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, strict=True)
            columns = reader.fieldnames or []
            for column in ("path", "label"):
                if column not in columns:
                    raise DmlError(
                        f"{file} has no column {column!r}{nearest(column, columns)} its first line must name path "
                        f"and label, and perhaps split; it names: {', '.join(columns) or 'nothing'}"
                    )
            used = [column for column in ("path", "label", "split") if column in columns]
            for row in reader:
                yield reader.line_num, {column: row[column] or "" for column in used}
    except OSError as error:
        raise DmlError(
            f"can't read the table {file}: {error.strerror}; expected a CSV file with the columns path and label"
        ) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise DmlError(f"{file} is not a CSV file in UTF-8: {error}") from error

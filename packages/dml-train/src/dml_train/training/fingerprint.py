"""The fingerprint of a run's data set, to notice a change when a run resumes: path, size and class
per image.

``data.npz`` contains three arrays per part: ``train_items``, ``train_sizes`` and ``train_classes``.
Pixels aren't read.

Shapes: `N` items, `C` classes.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml_core import Dataset, DmlError, FileBackedSplit
from dml_train.files import write_atomically
from dml_train.run_folder import RunFolder


class Part(NamedTuple):
    """The items of the training split, the test split or the gallery."""

    # (N,) uint64: hashes of the paths relative to the common folder; if the split doesn't use
    # files, the row numbers.
    items: npt.NDArray[Any]
    sizes: npt.NDArray[Any]  # (N,) int64: file sizes in bytes; if the split doesn't use files, 0
    classes: npt.NDArray[Any]  # (N,) uint64: hashes of the class names


_EMPTY = Part(*(np.empty(0, np.uint64) for _ in Part._fields))


def find_changes(folder: RunFolder, dataset: Dataset) -> list[str]:
    """Describe how a data set differs from the fingerprint in a run's folder, with a line per part;
    empty if equal.

    Raise a `DmlError` if the folder's fingerprint is corrupt, or an image file can't be read.
    """
    if not folder.data.is_file():  # the run was stopped before a fingerprint was saved
        return []
    before, now = _read(folder), _take(dataset)
    pairs = {part: (before.get(part, _EMPTY), now.get(part, _EMPTY)) for part in {**before, **now}}
    return [
        f"{part}: {_describe_change(*pair)}"
        for part, pair in pairs.items()
        if not all(map(np.array_equal, *pair))
    ]


def save_fingerprint(folder: RunFolder, dataset: Dataset) -> None:
    """Write a data set's fingerprint into the run's folder; raise a `DmlError` if an image can't be
    read.
    """
    arrays = {
        f"{name}_{field}": array
        for name, part in _take(dataset).items()
        for field, array in part._asdict().items()
    }
    write_atomically(folder.data, lambda file: np.savez(file, allow_pickle=False, **arrays))


def _describe_change(before: Part, now: Part) -> str:
    _, old, new = np.intersect1d(before.items, now.items, return_indices=True)
    resized = int((before.sizes[old] != now.sizes[new]).sum())
    relabelled = int((before.classes[old] != now.classes[new]).sum())
    counts = {
        "added": len(now.items) - len(new),
        "removed": len(before.items) - len(old),
        "with a different size": resized,
        "with a different class": relabelled,
    }
    words = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    return f"of {len(before.items):,} images, {words or 'some in a different order'}"


def _read(folder: RunFolder) -> dict[str, Part]:
    try:
        with folder.data.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            parts = dict.fromkeys(name.rpartition("_")[0] for name in stored.files)
            return {
                part: Part(*(stored[f"{part}_{field}"] for field in Part._fields)) for part in parts
            }
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DmlError(
            f"{folder.data}, the fingerprint of the run's data, is corrupt: {error}. Remove it to "
            "resume without comparing the data"
        ) from error


def _take(dataset: Dataset) -> dict[str, Part]:
    splits = {"train": dataset.train, "test": dataset.test, "gallery": dataset.gallery}
    files = {
        name: [os.fspath(file) for file in split.files]
        for name, split in splits.items()
        if isinstance(split, FileBackedSplit)
    }
    # Hash paths relative to the common folder, so that moving the whole folder isn't a change.
    folders = {os.path.dirname(file) for of_part in files.values() for file in of_part}  # noqa: PTH120
    common = os.path.commonpath(folders) if folders else ""
    found = {}
    for name, split in splits.items():
        if split is None:
            continue
        items, sizes = np.arange(len(split), dtype=np.uint64), np.zeros(len(split), np.int64)
        if name in files:
            items = _hash(file.removeprefix(common) for file in files[name])
            try:
                sizes = np.array([os.stat(file).st_size for file in files[name]], dtype=np.int64)  # noqa: PTH116
            except OSError as error:
                raise DmlError(
                    f"can't read the image {error.filename}: {error.strerror}"
                ) from error
        found[name] = Part(items, sizes, _hash(split.class_names)[split.labels])
    return found


def _hash(names: Iterable[str]) -> npt.NDArray[np.uint64]:
    return np.array(
        [int.from_bytes(blake2b(os.fsencode(name), digest_size=8).digest()) for name in names],
        dtype=np.uint64,
    )

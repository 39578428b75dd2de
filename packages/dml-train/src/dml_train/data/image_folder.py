"""A folder of images with one subfolder per class."""

from __future__ import annotations

from pathlib import Path

from dml_core import DmlError
from dml_train.data.decoding import SUFFIXES
from dml_train.data.parts import Classes, Parts, check_fraction, check_parts, split_classes


def read_image_folder(root: str, train_fraction: float = 0.5, split_seed: int = 0) -> Parts:
    """List the images in ``root/CLASS/**``, split by class; classes and files are sorted by name.

    If `root` holds the folders ``train`` and ``test`` and no other, they are the splits, each with its class folders;
    likewise ``train``, ``query`` and ``gallery``, where queries are searched in the gallery. Otherwise the classes
    are shuffled by `split_seed`, and the first `train_fraction` of them train.

    Args:
        root: the folder.
        train_fraction: share of the classes that train, above 0 and below 1.
        split_seed: of the shuffle. It isn't the run's seed, so that runs of all seeds are measured on the same
            classes.

    Raises:
        DmlError: no such folder, fewer than two classes with images, a class in both splits, two classes of one
            name, or a gallery without a match for any query.
        ValueError: a number out of its range.
    """
    check_fraction(train_fraction)
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise DmlError(f"image folder {folder} is not a folder; expected ROOT/CLASS/IMAGE")
    children = {child.name for child in _list_folders(folder)}
    for test, gallery in (("test", None), ("query", "gallery")):
        names = {"train": "train", "test": test} | ({} if gallery is None else {"gallery": gallery})
        if children == {*names.values()}:
            parts = Parts(**{part: _list_part(folder / name) for part, name in names.items()})
            check_parts(parts, {part: str(folder / name) for part, name in names.items()})
            return parts
    classes = _list_classes(folder)
    if len(classes) < 2:
        raise DmlError(
            f"{folder} holds {len(classes)} folders with images ({', '.join(sorted(SUFFIXES))}); "
            "expected ROOT/CLASS/IMAGE with at least two classes"
        )
    parts = split_classes(classes, train_fraction, split_seed, str(folder))
    check_parts(parts, dict.fromkeys(parts.by_name(), str(folder)))
    return parts


def _list_folders(folder: Path) -> list[Path]:
    return [child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")]


def _list_part(folder: Path) -> Classes:
    """List the classes of a folder ``train``, ``test``, ``query`` or ``gallery``."""
    if not (classes := _list_classes(folder)):
        raise DmlError(f"{folder} holds no folder with images; expected {folder.name}/CLASS/IMAGE")
    return classes


def _list_classes(folder: Path) -> Classes:
    """List the images below each subfolder, by its name; omit subfolders without images."""
    classes = {}
    for child in sorted(_list_folders(folder)):
        files = sorted(f for f in child.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file())
        if files:
            classes[child.name] = files
    return classes

"""A folder of images, one folder a class."""

from __future__ import annotations

from pathlib import Path

from dml_core import DmlError
from dml_train.data.decoding import SUFFIXES
from dml_train.data.parts import Classes, Parts, apart, check_fraction, refuse_unfit


def read_image_folder(root: str, train_fraction: float = 0.5, split_seed: int = 0) -> Parts:
    """The images in ``root/CLASS/**``, split by class; classes and files in the order of their names.

    If `root` holds the folders ``train`` and ``test`` and no other, they are the splits, each with its folders of
    classes; likewise ``train``, ``query`` and ``gallery``, where queries are searched in a gallery of the same
    classes. Otherwise the classes are shuffled by `split_seed` and the first `train_fraction` of them train.

    Args:
        root: the folder.
        train_fraction: share of the classes that train, above 0 and below 1.
        split_seed: of the shuffle. Not the run's seed: runs of different seeds are measured on the same classes.

    Raises:
        DmlError: no such folder, fewer than two classes with images, a class in both splits, two classes of one
            name, or queries without a match in the gallery.
        ValueError: a number out of its range.
    """
    check_fraction(train_fraction)
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise DmlError(f"image folder {folder} is not a folder; expected ROOT/CLASS/IMAGE")
    children = {child.name for child in _folders(folder)}
    for test, gallery in (("test", None), ("query", "gallery")):
        names = {"train": "train", "test": test} | ({} if gallery is None else {"gallery": gallery})
        if children == {*names.values()}:
            parts = Parts(**{part: _part(folder / name) for part, name in names.items()})
            refuse_unfit(parts, {part: str(folder / name) for part, name in names.items()})
            return parts
    classes = _classes(folder)
    if len(classes) < 2:
        raise DmlError(
            f"{folder} holds {len(classes)} folders with images ({', '.join(sorted(SUFFIXES))}); "
            "expected ROOT/CLASS/IMAGE with at least two classes"
        )
    parts = apart(classes, train_fraction, split_seed, str(folder))
    refuse_unfit(parts, dict.fromkeys(parts.named(), str(folder)))
    return parts


def _folders(folder: Path) -> list[Path]:
    return [child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")]


def _part(folder: Path) -> Classes:
    """The classes of one part of a data set that comes in parts."""
    if not (classes := _classes(folder)):
        raise DmlError(f"{folder} holds no folder with images; expected {folder.name}/CLASS/IMAGE")
    return classes


def _classes(folder: Path) -> Classes:
    """The images under each folder, by its name; folders without any are left out."""
    classes = {}
    for child in sorted(_folders(folder)):
        files = sorted(f for f in child.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file())
        if files:
            classes[child.name] = files
    return classes

"""A folder of images with a subfolder per class."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from dml_core import DmlError
from dml_train.data.decoding import SUFFIXES
from dml_train.data.parts import Classes, Parts, check_parts, split_classes

# Common names for the parts of a data set.
_PARTS = {
    "train",
    "training",
    "val",
    "valid",
    "validation",
    "dev",
    "test",
    "testing",
    "query",
    "gallery",
}
# Each layout maps the parts of a data set to folders.
_LAYOUTS = (
    {"train": "train", "test": "test"},
    {"train": "train", "test": "query", "gallery": "gallery"},
)


def read_image_folder(root: str, train_fraction: float = 0.5, split_seed: int = 0) -> Parts:
    """List the images in ``root/CLASS/**``, split by class; classes and files are sorted by name.

    If `root` contains only the folders ``train`` and ``test``, or only ``train``, ``query`` and
    ``gallery``, these are the splits, with a folder per class; queries are searched in the gallery.
    Otherwise classes are shuffled and split.

    Args:
        root: the folder.
        train_fraction: share of the classes that train, above 0 and below 1.
        split_seed: seed for shuffling; not the run's seed, so that all runs are measured on
            identical classes.

    Raises:
        DmlError: if the folder is missing, fewer than 2 classes contain images, or parts are
            invalid (`check_parts`).
        ValueError: if a number is out of range.
    """
    folder = Path(root).expanduser()
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "doesn't exist"
        raise DmlError(
            f"the image folder {folder} {what}; expected ROOT/CLASS/IMAGE: set dataset.root"
        )
    children = {child.name for child in _list_folders(folder)}
    for layout in _LAYOUTS:
        if children == {*layout.values()}:
            listed = {part: _list_classes(folder / name) for part, name in layout.items()}
            for part, name in layout.items():
                if not listed[part]:
                    raise DmlError(
                        f"{folder / name} doesn't contain a folder with images; expected "
                        f"{name}/CLASS/IMAGE"
                    )
            parts = Parts(listed["train"], listed["test"], listed.get("gallery"))
            check_parts(parts, {part: str(folder / name) for part, name in layout.items()})
            return parts
    if children and children <= _PARTS:
        raise DmlError(
            f"{folder} contains the folders {', '.join(sorted(children))}, which are names of "
            "parts, not of classes; expected train and test, or train, query and gallery, each "
            "with class folders; or only class folders"
        )
    classes = _list_classes(folder)
    if len(classes) < 2:
        raise _too_few_classes(folder, classes)
    parts = split_classes(classes, train_fraction, split_seed, str(folder))
    check_parts(parts, dict.fromkeys(parts.by_name(), str(folder)))
    return parts


def image_files(folder: Path) -> list[Path]:
    """List the images in a folder, including subfolders, sorted; links to folders aren't followed.

    Raise a `DmlError` if a folder can't be read, since otherwise images would be missing silently.
    """

    def fail(error: OSError) -> NoReturn:
        raise DmlError(f"can't read the folder {error.filename}: {error.strerror}") from error

    return sorted(
        file
        for parent, _, names in os.walk(folder, onerror=fail)
        for name in names
        if _is_image(file := Path(parent, name))
    )


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and file.is_file()


def _list_folders(folder: Path) -> list[Path]:
    return [
        child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")
    ]


def _list_classes(folder: Path) -> Classes:
    """List the images per subfolder, by subfolder name; omit empty subfolders."""
    listed = {child.name: image_files(child) for child in sorted(_list_folders(folder))}
    return {name: files for name, files in listed.items() if files}


def _too_few_classes(folder: Path, classes: Classes) -> DmlError:
    """Describe a folder that contains fewer than 2 classes, and say which layout was expected."""
    found = [f"{len(classes)} {'folder' if len(classes) == 1 else 'folders'} with images"]
    if classes:
        found[0] += f" ({', '.join(classes)})"
    if direct := sum(map(_is_image, folder.iterdir())):
        found.append(f"{direct} {'image' if direct == 1 else 'images'} directly in it")
    elif not classes:
        below = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
        if visible := next(
            (p for p in below if not any(part.startswith(".") for part in p.parts)), None
        ):
            found.append(f"other files, such as {visible}")
    message = (
        f"{folder} contains {' and '.join(found)}; expected ROOT/CLASS/IMAGE with at least two "
        f"classes: a folder for the images ({', '.join(sorted(SUFFIXES))}) of each class"
    )
    for child in sorted(_list_folders(folder)):
        if len(_list_classes(child)) >= 2:
            message += f". {child} contains class folders: --set dataset.root={child}"
            break
    return DmlError(message)

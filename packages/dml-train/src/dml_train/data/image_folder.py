"""A folder of images with one subfolder per class."""

from __future__ import annotations

from pathlib import Path

from dml_core import DmlError
from dml_train.data.decoding import SUFFIXES
from dml_train.data.image_files import image_files, is_image
from dml_train.data.parts import Classes, Parts, check_fraction, check_parts, split_classes

# Names that people give to parts of a data set.
_PART_NAMES = {
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
        what = "is not a folder" if folder.exists() else "doesn't exist"
        raise DmlError(f"the image folder {folder} {what}; expected ROOT/CLASS/IMAGE: set dataset.root")
    children = {child.name for child in _list_folders(folder)}
    for test, gallery in (("test", None), ("query", "gallery")):
        names = {"train": "train", "test": test} | ({} if gallery is None else {"gallery": gallery})
        if children == {*names.values()}:
            listed = {part: _list_part(folder / name) for part, name in names.items()}
            parts = Parts(listed["train"], listed["test"], listed.get("gallery"))
            check_parts(parts, {part: str(folder / name) for part, name in names.items()})
            return parts
    if children and children <= _PART_NAMES:
        raise DmlError(
            f"{folder} holds the folders {', '.join(sorted(children))}, which are names of parts and not of classes; "
            "expected train and test, or train, query and gallery, each with its class folders; or class folders alone"
        )
    classes = _list_classes(folder)
    if len(classes) < 2:
        raise _too_few_classes(folder, classes)
    parts = split_classes(classes, train_fraction, split_seed, str(folder))
    check_parts(parts, dict.fromkeys(parts.by_name(), str(folder)))
    return parts


def _too_few_classes(folder: Path, classes: Classes) -> DmlError:
    """Say what a folder holds that has no two classes."""
    found = [f"{len(classes)} {'folder' if len(classes) == 1 else 'folders'} with images"]
    if classes:
        found[0] += f" ({', '.join(classes)})"
    if direct := sum(is_image(file) for file in folder.iterdir()):
        found.append(f"{direct} {'image' if direct == 1 else 'images'} directly in it")
    elif not classes and (other := _find_other_file(folder)):
        found.append(f"other files, such as {other.relative_to(folder)}")
    message = (
        f"{folder} holds {' and '.join(found)}; expected ROOT/CLASS/IMAGE with at least two classes: a folder for the "
        f"images ({', '.join(sorted(SUFFIXES))}) of each class"
    )
    for child in sorted(_list_folders(folder)):
        if len(_list_classes(child)) >= 2:
            message += f". {child} holds class folders: --set dataset.root={child}"
            break
    return DmlError(message)


def _find_other_file(folder: Path) -> Path | None:
    """Find a file that isn't an image, hidden ones apart."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            return path
    return None


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
        if files := image_files(child):
            classes[child.name] = files
    return classes

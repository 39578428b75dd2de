"""CUB-200-2011: 11,788 photographs of 200 species of birds; the first 100 train (Wah et al. 2011; Song et al. 2016)."""

from __future__ import annotations

from pathlib import Path

from dml_core import DmlError
from dml_train.data.parts import Parts
from dml_train.data.published.official import (
    Archive,
    OfficialSet,
    PublishedCounts,
    parse_number,
    read_lines,
)

_TRAIN_CLASSES = 100  # the first ones by number


def _list_parts(folder: Path) -> Parts:
    names: dict[int, str] = {}
    for number, name in read_lines(folder / "classes.txt", 2):
        names[parse_number(number, folder / "classes.txt")] = name
    if len({*names.values()}) < len(names):
        twice = next(name for name in names.values() if [*names.values()].count(name) > 1)
        raise DmlError(
            f"{folder / 'classes.txt'} has two classes with one name, {twice!r}; unpack the archive again"
        )
    images = {image: folder / "images" / path for image, path in read_lines(folder / "images.txt", 2)}
    train: dict[str, list[Path]] = {}
    test: dict[str, list[Path]] = {}
    labels = folder / "image_class_labels.txt"
    for image, number in read_lines(labels, 2):
        c = parse_number(number, labels)
        if image not in images or c not in names:
            raise DmlError(
                f"{labels} names image {image} and class {c}, but images.txt or classes.txt lacks one of them; "
                "unpack the archive again"
            )
        (train if c <= _TRAIN_CLASSES else test).setdefault(names[c], []).append(images.pop(image))
    if images:
        raise DmlError(
            f"{labels} assigns no class to {len(images):,} images of images.txt, e.g. {min(images.values())}; "
            "unpack the archive again"
        )
    return Parts(train, test)


CUB = OfficialSet(
    name="cub",
    title="CUB-200-2011",
    markers=("images.txt",),
    list_parts=_list_parts,
    published={"train": PublishedCounts(5_864, 100), "test": PublishedCounts(5_924, 100)},
    archives=(
        Archive(
            "CUB_200_2011.tgz",
            "1.1 GB",
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            md5="97eceeb196236b17998738112f37df78",
        ),
    ),
)


def read_cub(root: str) -> Parts:
    """Read CUB-200-2011 in its layout: ``images.txt``, ``image_class_labels.txt``, ``classes.txt`` and ``images``.

    Classes 1 to 100 train (5,864 images), 101 to 200 test (5,924); full images, no bounding boxes.

    Source: Wah et al. 2011; the split is that of Song et al. 2016, which all papers use.

    Args:
        root: the folder ``CUB_200_2011``, or its parent.

    Raises:
        DmlError: if it is missing or incomplete.
    """
    return CUB.read(root)

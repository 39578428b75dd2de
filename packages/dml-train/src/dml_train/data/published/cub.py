"""CUB-200-2011: 11,788 photographs of 200 species of birds, full images without bounding boxes.

Source: Wah et al. 2011; the split is from Song et al. 2016, as in all papers.
"""

from __future__ import annotations

from pathlib import Path

from dml_core import DmlError
from dml_train.data.parts import Parts
from dml_train.data.published.official import Archive, OfficialSet, parse_number, read_lines

_TRAIN_CLASSES = 100  # the first classes by number


def _list_parts(folder: Path) -> Parts:
    """Read ``classes.txt``, ``images.txt`` and ``image_class_labels.txt``."""
    names = {
        parse_number(number, folder / "classes.txt"): name
        for number, name in read_lines(folder / "classes.txt", 2)
    }
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
        (train if c <= _TRAIN_CLASSES else test).setdefault(names[c], []).append(images[image])
    return Parts(train, test)


CUB = OfficialSet(
    name="cub",
    title="CUB-200-2011",
    markers=("images.txt",),
    list_parts=_list_parts,
    published={"train": (5_864, 100), "test": (5_924, 100)},
    archives=(
        Archive(
            "CUB_200_2011.tgz",
            "1.1 GB",
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            md5="97eceeb196236b17998738112f37df78",
        ),
    ),
)

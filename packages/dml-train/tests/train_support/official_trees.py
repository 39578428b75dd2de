"""Small trees of published data sets, in the official layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from dml_train.data.published.official import OfficialSet
from dml_train.data.published.sets import OFFICIAL

CUB_COUNTS = {"train": (16, 2), "test": (8, 1)}


def reduce(name: str, published: dict[str, tuple[int, int]], **changes: object) -> OfficialSet:
    """Return an official data set with these counts in place of the published counts."""
    return replace(OFFICIAL[name], published=published, **changes)


def write(file: Path, lines: Sequence[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def draw(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), "teal").save(file)


def make_cub(folder: Path) -> list[Path]:
    """Write CUB using `CUB_COUNTS`; return the images."""
    images = [f"{c:03}.Bird/{i}.jpg" for c in (1, 2, 101) for i in range(8)]
    draw(*(folder / "images" / image for image in images))
    write(folder / "classes.txt", ["1 001.Bird", "2 002.Bird", "101 101.Bird"])
    write(folder / "images.txt", [f"{i} {image}" for i, image in enumerate(images)])
    write(folder / "image_class_labels.txt", [f"{i} {(1, 2, 101)[i // 8]}" for i in range(24)])
    return [folder / "images" / image for image in images]


def write_cars_annotations(
    file: Path,
    paths: Sequence[str],
    classes: Sequence[int],
    names: list[str],
    field: str = "relative_im_path",
) -> None:
    fields = [
        "bbox_x1",
        "class",
        field,
    ]  # a single side of the bounding box suffices, since it isn't read
    annotations = np.empty((1, len(paths)), dtype=[(field, object) for field in fields])
    for i, (path, c) in enumerate(zip(paths, classes)):
        annotations[0, i] = (1, c, path)
    savemat(file, {"annotations": annotations, "class_names": np.array([names], dtype=object)})

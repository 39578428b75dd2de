"""Fake trees of the published data sets, with their official layout and full counts, all of one tiny picture.

The pictures are hard links to a few files: a hundred thousand take seconds.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat


class Pictures:
    """Pictures made as hard links to several files, since a file may have only some tens of thousands of links."""

    def __init__(self, folder: Path, kinds: int = 8) -> None:
        folder.mkdir()
        buffer = io.BytesIO()
        Image.new("RGB", (8, 8), "teal").save(buffer, "JPEG")
        self._sources = [folder / f"{kind}.jpg" for kind in range(kinds)]
        for source in self._sources:
            source.write_bytes(buffer.getvalue())
        self._made = 0
        self._folders: set[str] = set()

    def make(self, file: Path) -> None:
        if (parent := str(file.parent)) not in self._folders:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._folders.add(parent)
        os.link(self._sources[self._made % len(self._sources)], file)
        self._made += 1


def divide(images: int, classes: int) -> list[int]:
    """Divide a number of images among classes as equally as possible."""
    return [len(part) for part in np.array_split(np.empty(images, np.uint8), classes)]


def make_cub(folder: Path, pictures: Pictures) -> None:
    names = [f"{c:03}.Bird_{c}" for c in range(1, 201)]
    sizes = divide(5_864, 100) + divide(5_924, 100)
    images = [f"{name}/{name}_{i:04}.jpg" for name, size in zip(names, sizes) for i in range(size)]
    classes = np.repeat(np.arange(1, 201), sizes)
    for image in images:
        pictures.make(folder / "images" / image)
    write(folder / "classes.txt", [f"{c} {name}" for c, name in enumerate(names, 1)])
    write(folder / "images.txt", [f"{i} {image}" for i, image in enumerate(images, 1)])
    write(folder / "image_class_labels.txt", [f"{i} {c}" for i, c in enumerate(classes, 1)])


def make_cars196(folder: Path, pictures: Pictures) -> None:
    classes = np.repeat(np.arange(1, 197), divide(8_054, 98) + divide(8_131, 98))
    np.random.default_rng(0).shuffle(classes)  # real annotations aren't sorted by class
    paths = [f"car_ims/{i:06}.jpg" for i in range(1, len(classes) + 1)]
    for path in paths:
        pictures.make(folder / path)
    write_cars_annotations(folder / "cars_annos.mat", paths, classes, [f"Car {c}" for c in range(1, 197)])


def write_cars_annotations(
    file: Path, paths: Sequence[str], classes: np.ndarray, names: list[str], field: str = "relative_im_path"
) -> None:
    fields = ["bbox_x1", "class", field]  # one side stands for the bounding box, which nothing reads
    annotations = np.empty((1, len(paths)), dtype=[(field, object) for field in fields])
    for i, (path, c) in enumerate(zip(paths, classes)):
        annotations[0, i] = (1, int(c), path)
    savemat(file, {"annotations": annotations, "class_names": np.array([names], dtype=object)})


def make_sop(folder: Path, pictures: Pictures) -> None:
    kinds = ("bicycle", "cabinet", "chair", "sofa")
    first, image = 1, 1
    for part, total, classes in (("train", 59_551, 11_318), ("test", 60_502, 11_316)):
        lines = ["image_id class_id super_class_id path"]
        for c, size in enumerate(divide(total, classes), first):
            for i in range(size):
                path = f"{kinds[c % 4]}_final/{c:06}_{i}.JPG"
                pictures.make(folder / path)
                lines.append(f"{image} {c} {c % 4 + 1} {path}")
                image += 1
        write(folder / f"Ebay_{part}.txt", lines)
        first += classes


def make_in_shop(folder: Path, pictures: Pictures) -> None:
    lines = []
    for c, size in enumerate(divide(25_882, 3_997)):
        lines += [(f"WOMEN/Dresses/id_{c:08}/0{i}_front.jpg", c, "train") for i in range(size)]
    queries, gallery = divide(14_218, 3_985), divide(12_612, 3_985)
    for c in range(3_985):
        item = 3_997 + c
        for part, size in (("query", queries[c]), ("gallery", gallery[c])):
            lines += [(f"MEN/Shirts/id_{item:08}/0{i}_{part}.jpg", item, part) for i in range(size)]
    for path, _, _ in lines:
        pictures.make(folder / "img" / path)
    write(
        folder / "list_eval_partition.txt",
        [
            str(len(lines)),
            "image_name item_id evaluation_status",
            *(f"img/{path}  id_{item:08}  {part}" for path, item, part in lines),
        ],
    )


def make_market1501(folder: Path, pictures: Pictures) -> None:
    def persons(first: int, images: int, count: int) -> list[str]:
        sizes = divide(images, count)
        return [
            f"{first + p:04}_c{i % 6 + 1}s1_{i:06}_01" for p, size in enumerate(sizes) for i in range(size)
        ]

    distractors = [f"0000_c{i % 6 + 1}s1_{i:06}_01" for i in range(1_913)]
    junk = [f"-1_c{i % 6 + 1}s1_{i:06}_01" for i in range(3_819)]
    names = {
        "bounding_box_train": persons(1, 12_936, 751),
        "query": persons(752, 3_368, 750),
        "bounding_box_test": [*persons(752, 14_000, 750), *distractors, *junk],
    }
    for name, files in names.items():
        for file in files:
            pictures.make(folder / name / f"{file}.jpg")
        (folder / name / "Thumbs.db").touch()  # as in the archive


def quick_folder(name: str) -> tempfile.TemporaryDirectory[str]:
    """Make a temporary folder, in memory if possible, where a link costs microseconds."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(
        prefix=name, dir=memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    )


MAKERS: dict[str, Callable[[Path, Pictures], None]] = {
    "cub": make_cub,
    "cars196": make_cars196,
    "sop": make_sop,
    "in-shop": make_in_shop,
    "market1501": make_market1501,
}


def write(file: Path, lines: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")

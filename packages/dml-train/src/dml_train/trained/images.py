"""Images to embed, in a fixed order: of a folder, of archives or tables, or of a split of a run's data set.

Shapes: `N` images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dml_core import DmlError, Registry, Split
from dml_core import registry as installed
from dml_train.data.decoding import SUFFIXES, ImageSource
from dml_train.data.image_folder import image_files
from dml_train.measure.embed import ImageChunks
from dml_train.trained.model import TrainedModel
from dml_train.training.build import build_dataset

SplitName = Literal["train", "test", "gallery"]


@dataclass(frozen=True, slots=True)
class ImageList:
    """Images in a fixed order: image files, images inside files, or the items of a split.

    Args:
        title: names the list in messages: ``"photos"``.
        names: (N,) strings; they identify the images on every machine.
        sources: (N,) the images; empty for a split.
        files: (N,) the file that holds each image; empty for a split.
        folder: the folder of image files, whose subfolders are classes; None for other images.
        split: the split.
        split_name: its name in the run's data set.
    """

    title: str
    names: Sequence[str]
    sources: Sequence[ImageSource] = ()
    files: Sequence[Path] = ()
    folder: Path | None = None
    split: Split | None = None
    split_name: SplitName | None = None

    @property
    def places(self) -> list[Path]:
        """Files or folders that hold the images: other machines must see them, too."""
        return list(dict.fromkeys(self.files)) if self.folder is None else [self.folder]

    def chunks(self, model: TrainedModel, items: Sequence[range]) -> ImageChunks:
        """Return chosen images in chunks, prepared for the model."""
        chunks = [np.arange(part.start, part.stop) for part in items]
        return (
            model.chunks_of(self.sources, chunks) if self.split is None else ImageChunks(self.split, chunks)
        )

    def labels(self, kept: Sequence[str]) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
        """Return the labels of the images of these names, and their entry in the description of the rows.

        An image in a folder has the index of its first folder among all first folders, sorted by name. A split
        has labels, and omits no image.

        Raises:
            DmlError: if an image lies in no folder, or images aren't files of a folder.
        """
        if self.split is not None:
            return self.split.labels, {}
        if self.folder is None:
            raise DmlError(f"labels are the names of folders, and {self.title} has none; omit labels")
        if (loose := next((name for name in kept if "/" not in name), None)) is not None:
            raise DmlError(
                f"labels are the names of the folders in {self.folder}, and {loose} lies in none; "
                "move it into its class's folder, or omit labels"
            )
        folders = [name.partition("/")[0] for name in kept]
        classes, labels = np.unique(np.array(folders, dtype=object), return_inverse=True)
        return labels.astype(np.int64), {"classes": classes.tolist()}

    def describe(self) -> dict[str, Any] | None:
        """Describe the list in JSON's types; None for a split, whose rows are its items."""
        if self.split is not None:
            return None
        if self.folder is not None:
            return {"folder": str(self.folder.resolve())}
        return {"files": [str(file.resolve()) for file in self.places]}

    def states(self, items: Iterable[int], *, with_time: bool = True) -> list[str]:
        """Return for each image what reveals a change without reading it: its name, and its file's size and time.

        Args:
            items: the images.
            with_time: whether copies on different machines differ.
        """
        if self.split is not None:
            return [self.names[item] for item in items]
        found = [self.files[item] for item in items]
        statuses = {file: _describe_file(file, with_time) for file in dict.fromkeys(found)}
        return [f"{self.names[item]} {statuses[file]}" for item, file in zip(items, found)]


def find_images(folder: Path) -> list[Path]:
    """Find the images in a folder and its subfolders: their paths relative to it, sorted.

    Hidden files and folders, and files without an image's suffix, are omitted.

    Raises:
        DmlError: if it isn't a folder, holds no image, or a folder below it can't be read.
    """
    if not folder.is_dir():
        raise DmlError(f"{folder} is not a folder; expected one with images in it or in its subfolders")
    images = [file.relative_to(folder) for file in image_files(folder)]
    images = [path for path in images if not any(part.startswith(".") for part in path.parts)]
    if not images:
        raise DmlError(f"{folder} holds no images: no file in it ends in {', '.join(sorted(SUFFIXES))}")
    return images


def list_folder(folder: Path) -> ImageList:
    """List all images of a folder and its subfolders; raises as `find_images`."""
    return list_files(folder, folder, [path.as_posix() for path in find_images(folder)])


def list_files(title: Path, folder: Path, names: Sequence[str]) -> ImageList:
    """List image files by their paths relative to a folder, with ``/`` between folders."""
    files = [folder / name for name in names]
    return ImageList(str(title), names, files, files, folder)


def list_split(model: TrainedModel, name: SplitName, registry: Registry | None = None) -> ImageList:
    """List a split of the run's data set, which the registry provides (default: all installed components).

    Raises:
        DmlError: if the data set has no such split, or its files are missing.
    """
    dataset = build_dataset(model.recipe, registry or installed())
    split = {"train": dataset.train, "test": dataset.test, "gallery": dataset.gallery}[name]
    if split is None:
        raise DmlError(
            f"the data set {model.recipe.dataset['name']!r} has no separate gallery: its test split is queries and "
            "gallery"
        )
    names = [f"{item} {split.class_names[label]}" for item, label in enumerate(split.labels.tolist())]
    return ImageList(f"the {name} split", names, split=split, split_name=name)


def _describe_file(file: Path, with_time: bool) -> str:
    try:
        status = file.stat()
    except FileNotFoundError:  # removed since it was listed: an image that can't be decoded
        return "gone"
    return f"{status.st_size} {status.st_mtime_ns}" if with_time else str(status.st_size)

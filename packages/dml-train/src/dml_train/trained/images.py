"""Images to embed, in a fixed order: of a folder, of archives or tables, or of a split of a run's data set.

Shapes: `N` images.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dml_core import DmlError, Registry, Split
from dml_core import registry as installed
from dml_train.data.decoding import ImageSource
from dml_train.trained.files import find_images
from dml_train.trained.model import TrainedModel
from dml_train.trained.splits import SplitName, find_split
from dml_train.training.build import build_dataset


class ImageList(Protocol):
    """Images in a fixed order.

    Attributes:
        title: names the list in messages: ``"photos"``.
        names: (N,) strings; they identify the images on every machine.
        shown: (N,) how messages call the images; None: as the split calls its items.
        places: files or folders that hold the images: other machines must see them, too.
        split_name: of a split of the run's data set: its name; otherwise None.
    """

    @property
    def title(self) -> str: ...  # noqa: D102

    @property
    def names(self) -> Sequence[str]: ...  # noqa: D102

    @property
    def shown(self) -> Sequence[object] | None: ...  # noqa: D102

    @property
    def places(self) -> Sequence[Path]: ...  # noqa: D102

    @property
    def split_name(self) -> SplitName | None: ...  # noqa: D102

    def split(self, model: TrainedModel) -> Split:
        """Return the images as a split, prepared for the model."""
        ...

    def sources(self, items: range) -> list[ImageSource]:
        """Return what another machine needs to read these images; nothing for a split of the data set."""
        ...

    def labels(self, kept: Sequence[str]) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
        """Return the labels of the images of these names, and what the description of the rows says of them.

        Raises:
            DmlError: if an image has none.
        """
        ...

    def describe(self) -> dict[str, Any] | None:
        """Describe the list in JSON's types; None if its rows need no description."""
        ...

    def size(self, item: int) -> str:
        """Return what reveals another image without reading it, and is equal for a copy on another machine."""
        ...

    def state(self, item: int) -> bytes:
        """Return what reveals a changed image on this machine, without reading it."""
        ...


class FolderImages:
    """All images of a folder and its subfolders, in the order of their paths.

    Args:
        folder: holds them; their names are their paths relative to it, with ``/`` between folders.

    Raises:
        DmlError: as `find_images`.
    """

    split_name = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.title = str(folder)
        self.places = [folder]
        paths = find_images(folder)
        self.names: Sequence[str] = [path.as_posix() for path in paths]
        self.shown: Sequence[Path] = [folder / path for path in paths]

    def split(self, model: TrainedModel) -> Split:
        """Return the images as a split, prepared for the model."""
        return model.split_of(self.shown)

    def sources(self, items: range) -> list[ImageSource]:
        """Return the absolute paths of images."""
        return [self.shown[item].absolute() for item in items]

    def labels(self, kept: Sequence[str]) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
        """Return the index of each image's first folder among all first folders, sorted by name.

        Raises:
            DmlError: if an image lies in no folder.
        """
        if (loose := next((name for name in kept if "/" not in name), None)) is not None:
            raise DmlError(
                f"labels are the names of the folders in {self.folder}, and {loose} lies in none; "
                "move it into its class's folder, or omit labels"
            )
        classes = sorted({name.partition("/")[0] for name in kept})
        ids = {name: label for label, name in enumerate(classes)}
        labels = np.array([ids[name.partition("/")[0]] for name in kept], dtype=np.int64)
        return labels, {"classes": classes}

    def describe(self) -> dict[str, Any]:
        """Describe the list: its folder."""
        return {"folder": str(self.folder.resolve())}

    def size(self, item: int) -> str:
        """Return the file's size."""
        return describe_file(self.shown[item], with_time=False)

    def state(self, item: int) -> bytes:
        """Return the file's path, size and time."""
        file = self.shown[item]
        return f"{describe_file(file)} ".encode() + os.fsencode(file)


class SplitImages:
    """A split of a run's own data set.

    Args:
        model: of the run.
        name: the split's.
        registry: provides the data set; default: all installed ones.

    Raises:
        DmlError: if the data set has no such split, or its files are missing.
    """

    shown = None
    places: Sequence[Path] = ()

    def __init__(self, model: TrainedModel, name: SplitName, registry: Registry | None = None) -> None:
        recipe = model.recipe
        dataset = build_dataset(recipe, registry or installed())
        self.images = find_split(dataset, name, recipe)
        self.title = f"the {name} split"
        self.split_name: SplitName | None = name

    @cached_property
    def names(self) -> Sequence[str]:
        """(N,) the items' indices and classes."""
        classes, labels = self.images.class_names, self.images.labels.tolist()
        return [f"{item} {classes[label]}" for item, label in enumerate(labels)]

    def split(self, model: TrainedModel) -> Split:
        """Return the split itself."""
        return self.images

    def sources(self, items: range) -> list[ImageSource]:
        """Return nothing: another machine builds the data set."""
        return []

    def labels(self, kept: Sequence[str]) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
        """Return the split's labels; it omits no image."""
        return self.images.labels, {}

    def describe(self) -> None:
        """Return nothing: rows are the items of the split."""
        return

    def size(self, item: int) -> str:
        """Return nothing: a data set doesn't say where its images are."""
        return ""

    def state(self, item: int) -> bytes:
        """Return the item's index and class."""
        return self.names[item].encode()


def describe_file(file: Path, *, with_time: bool = True) -> str:
    """Return a file's size and, unless it may be a copy, its time."""
    try:
        status = file.stat()
    except FileNotFoundError:  # removed since the folder was read: an image that can't be decoded
        return "gone"
    return f"{status.st_size} {status.st_mtime_ns}" if with_time else str(status.st_size)

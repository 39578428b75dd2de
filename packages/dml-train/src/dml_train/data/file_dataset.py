"""The class of all data sets of image files, and a factory that adds common options.

Shapes: `N` items, `B` batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dml_core import options_of, signature_of
from dml_train.data.bad_images import check_bad_images, drop_bad_images, find_bad_images
from dml_train.data.decoding import check_complete_image
from dml_train.data.packed import PackedImages, open_pack
from dml_train.data.parts import Classes, Parts
from dml_train.data.preparation import Preparation
from dml_train.data.stored import (
    Item,
    PathTable,
    Selection,
    TableRow,
    TarMember,
    name_of,
    sort_images,
)


def join(classes: Classes) -> Sequence[Item]:
    """Return the images of all classes as a compact sequence."""
    parts = list(classes.values())
    if parts and all(isinstance(part, Selection) for part in parts):
        rows = np.concatenate([part.rows for part in parts])  # type: ignore[attr-defined]
        return Selection(parts[0].images, rows, parts[0].boxes)  # type: ignore[attr-defined]
    images = [image for part in parts for image in part]
    if any(not isinstance(image, Path) for image in images):
        return images
    return PathTable(images)  # type: ignore[arg-type]


class FileSplit:
    """A `Split` of images in files, decoded on demand or read from a pack.

    Args:
        classes: the images by class; labels number the classes in this order, from 0.
        preparation: how an image becomes the network's input.
        pack: the decoded and resized images; if None, files are decoded on demand.
        positions: the indices of images in the pack, by name.
        groups: the group per image; None if the split doesn't define groups.
    """

    groups: npt.NDArray[np.str_]  # (N,), only if given
    files: Sequence[Path]  # (N,), only if images are files

    def __init__(
        self,
        classes: Classes,
        preparation: Preparation,
        pack: PackedImages | None = None,
        positions: Mapping[str, int] | None = None,
        groups: Mapping[Any, str] | None = None,
    ) -> None:
        self.class_names: Sequence[str] = tuple(classes)
        self.images = join(classes)  # (N,)
        if isinstance(self.images[0], Path):
            self.files = self.images  # type: ignore[assignment]
        sizes = [len(files) for files in classes.values()]
        self.labels: npt.NDArray[np.int64] = np.repeat(np.arange(len(sizes)), sizes).astype(
            np.int64
        )
        if groups is not None:
            self.groups = np.array([groups[image] for image in self.images], dtype=np.str_)
        self.preparation = preparation
        self._pack = pack
        places = [] if positions is None else [positions[name_of(image)] for image in self.images]
        self._positions = np.array(places, dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of items, N."""
        return len(self.images)

    def load(
        self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None
    ) -> Tensor:
        """Load images, (len(indices), 3, crop, crop) float32, augmented by the preparation if seeds
        are given.

        Raise a `DmlError` if a file can't be decoded, or the pack is damaged.
        """
        return self.preparation.make_batch(
            [self._load_resized(int(index)) for index in indices], seeds
        )

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the centre of item `index`, as evaluation crops it, (crop, crop, 3) uint8."""
        return self.preparation.show(self._load_resized(index))

    def augmented_picture(self, index: int, seed: int) -> npt.NDArray[np.uint8]:
        """Return item `index` as training augments it with this seed, (crop, crop, 3) uint8."""
        return self.preparation.show_augmented(self._load_resized(index), seed)

    def _load_resized(self, index: int) -> Tensor:
        if self._pack is not None:
            return self._pack.read(int(self._positions[index]))
        return self.preparation.load_resized(self.images[index])


class FileDataset:
    """A `Dataset` of image files.

    Raises a `DmlError` if a file is bad, unless ``on_bad_image="skip"``, or a part is empty.

    Args:
        parts: the files by part.
        preparation: how an image becomes the network's input.
        on_bad_image: ``"error"`` checks the header and the end of all files now; a file that is
            damaged in between ends the run later. ``"skip"`` decodes all files now, and excludes
            and logs bad files, so that batches depend only on good files.
        cache: a folder for decoded and resized images, see `open_pack`; by default, not used.
            Results don't change.
    """

    in_channels = 3

    def __init__(
        self,
        parts: Parts,
        preparation: Preparation,
        *,
        on_bad_image: Literal["error", "skip"] = "error",
        cache: str | None = None,
    ) -> None:
        pack, positions, bad, files = None, None, {}, []
        # Rows and members are checked when they are read, since a table is indexed without reading
        # images.
        if (
            cache is not None
            or on_bad_image == "skip"
            or not isinstance(next(parts.files()), TableRow | TarMember)
        ):
            # Use strings, since hashing a Path is much slower.
            by_name = {name_of(image): image for image in parts.files()}
            files = sort_images(by_name.values())
        if cache is not None:
            pack = open_pack(files, preparation, Path(cache))
            positions = {name_of(image): place for place, image in enumerate(files)}
            bad = {files[place]: reason for place, reason in pack.bad.items()}
        else:
            read = check_complete_image if on_bad_image == "error" else preparation.load_resized
            bad = find_bad_images(files, read, "check images")
        if on_bad_image == "error":
            check_bad_images(bad)
        left = drop_bad_images(parts, bad)
        splits = {
            name: FileSplit(classes, preparation, pack, positions, left.groups)
            for name, classes in left.by_name().items()
        }
        self.train, self.test, self.gallery = splits["train"], splits["test"], splits.get("gallery")


class FileDatasetFactory:
    """A data set's factory, with the options of `Preparation`, `FileDataset` and `read`, which
    lists the files.
    """

    def __init__(self, read: Callable[..., Parts]) -> None:
        self.read = read
        self.__signature__ = signature_of([*options_of(read), *_PREPARATION, *_FILES])
        self.__qualname__ = read.__qualname__  # for messages

    def __call__(self, *arguments: Any, **options: Any) -> FileDataset:
        """Read the parts, and make the data set."""
        preparation = self.image_reader(**options)
        of_files = {
            option.name: options[option.name] for option in _FILES if option.name in options
        }
        own = {name: value for name, value in options.items() if name not in _NOT_OWN}
        return FileDataset(self.read(*arguments, **own), preparation, **of_files)

    @staticmethod
    def image_reader(**options: Any) -> Preparation:
        """Return the preparation with the options of a recipe's table; other options are
        ignored.
        """
        return Preparation(**{o.name: options[o.name] for o in _PREPARATION if o.name in options})

    def training_files(self, **options: Any) -> Sequence[Path]:
        """List the training files, good or bad."""
        parts = self.read(
            **{name: value for name, value in options.items() if name not in _NOT_OWN}
        )
        return [file for files in parts.train.values() for file in files if isinstance(file, Path)]


_PREPARATION = options_of(Preparation)
_FILES = [
    option for option in options_of(FileDataset) if option.name not in ("parts", "preparation")
]
_NOT_OWN = {option.name for option in (*_PREPARATION, *_FILES)}

"""The class of all data sets of image files, and a factory that adds common options.

Shapes: `N` items, `B` batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
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


class PathTable(Sequence[Path]):
    """A compact sequence of paths, which takes 8 bytes per path besides the characters.

    A list of `Path` objects takes some 400 bytes per path in each loader process, and seconds to send there.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self._bytes = b"".join(encoded)
        self._ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of paths."""
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        """Return a path, or a list of paths for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]  # this will raise an IndexError like a list
        begin = int(self._ends[place - 1]) if place else 0
        return Path(os.fsdecode(self._bytes[begin : int(self._ends[place])]))


class FileSplit:
    """A `Split` of image files, decoded on demand or read from a pack.

    Args:
        classes: the files by class; labels number the classes in this order, from 0.
        preparation: how an image becomes the network's input.
        pack: the decoded and resized images; if None, files are decoded on demand.
        positions: the indices of files in the pack, by path.
        groups: the group per file; None if the split doesn't define groups.
    """

    groups: npt.NDArray[np.str_]  # (N,), only if given

    def __init__(
        self,
        classes: Classes,
        preparation: Preparation,
        pack: PackedImages | None = None,
        positions: Mapping[str, int] | None = None,
        groups: Mapping[Path, str] | None = None,
    ) -> None:
        self.class_names: Sequence[str] = tuple(classes)
        self.files: Sequence[Path] = PathTable(file for files in classes.values() for file in files)  # (N,)
        sizes = [len(files) for files in classes.values()]
        self.labels: npt.NDArray[np.int64] = np.repeat(np.arange(len(sizes)), sizes).astype(np.int64)
        if groups is not None:
            self.groups = np.array([groups[file] for file in self.files], dtype=np.str_)
        self.preparation = preparation
        self._pack = pack
        places = [] if positions is None else [positions[str(file)] for file in self.files]
        self._positions = np.array(places, dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of items, N."""
        return len(self.files)

    def load(self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None) -> Tensor:
        """Load images, (len(indices), 3, crop, crop) float32, augmented by the preparation if seeds are given.

        Raise a `DmlError` if a file can't be decoded, or the pack is damaged.
        """
        return self.preparation.make_batch([self._load_resized(int(index)) for index in indices], seeds)

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the centre of item `index`, as evaluation crops it, (crop, crop, 3) uint8."""
        return self.preparation.show(self._load_resized(index))

    def _load_resized(self, index: int) -> Tensor:
        if self._pack is not None:
            return self._pack.read(int(self._positions[index]))
        return self.preparation.load_resized(self.files[index])


class FileDataset:
    """A `Dataset` of image files.

    Raises a `DmlError` if a file is bad, unless ``on_bad_image="skip"``, or a part is empty.

    Args:
        parts: the files by part.
        preparation: how an image becomes the network's input.
        on_bad_image: ``"error"`` checks the header and the end of all files now; a file that is damaged in between ends
            the run later. ``"skip"`` decodes all files now, and excludes and logs bad files, so that batches depend
            only on good files.
        cache: a folder for decoded and resized images, see `open_pack`; by default, not used. Results don't change.
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
        # Use strings, since hashing and comparing a Path is much slower.
        by_text = {str(file): file for file in parts.files()}
        files = [by_text[text] for text in sorted(by_text)]
        pack, positions = None, None
        if cache is not None:
            pack = open_pack(files, preparation, Path(cache))
            positions = {str(file): place for place, file in enumerate(files)}
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
    """A data set's factory, with the options of `Preparation`, `FileDataset` and `read`, which lists the files."""

    def __init__(self, read: Callable[..., Parts]) -> None:
        self.read = read
        self.__signature__ = signature_of([*options_of(read), *_PREPARATION, *_FILES])
        self.__qualname__ = read.__qualname__  # for messages

    def __call__(self, *arguments: Any, **options: Any) -> FileDataset:
        """Read the parts, and make the data set."""
        preparation = self.image_reader(**options)
        of_files = {option.name: options[option.name] for option in _FILES if option.name in options}
        own = {name: value for name, value in options.items() if name not in _NOT_OWN}
        return FileDataset(self.read(*arguments, **own), preparation, **of_files)

    @staticmethod
    def image_reader(**options: Any) -> Preparation:
        """Return the preparation with the options of a recipe's table; other options are ignored."""
        return Preparation(**{o.name: options[o.name] for o in _PREPARATION if o.name in options})

    def training_files(self, **options: Any) -> Sequence[Path]:
        """List the training files, good or bad."""
        parts = self.read(**{name: value for name, value in options.items() if name not in _NOT_OWN})
        return [file for files in parts.train.values() for file in files]


_PREPARATION = options_of(Preparation)
_FILES = [option for option in options_of(FileDataset) if option.name not in ("parts", "preparation")]
_NOT_OWN = {option.name for option in (*_PREPARATION, *_FILES)}

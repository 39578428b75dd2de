"""Data sets of image files: one kind of object for all of them, and one set of options beside each one's own."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dml_train.data.decoding import check_header
from dml_train.data.file_split import FileSplit
from dml_train.data.parts import Classes, Parts
from dml_train.data.preparation import Normalize, Preparation, TrainCrop


class FileDataset:
    """A `Dataset` of image files.

    Args:
        parts: which files are in which part.
        resize, square, crop, train_crop, min_area, flip, normalize: see `Preparation`.

    Attributes:
        train, test: the splits.
        gallery: None where the test split is its own.
        in_channels: 3.

    Raises:
        DmlError: a file that isn't a readable image (every file's header is read here; pixels on demand).
        ValueError: a value out of its range.
    """

    in_channels = 3

    def __init__(
        self,
        parts: Parts,
        *,
        resize: int = 256,
        square: bool = False,
        crop: int = 224,
        train_crop: TrainCrop = "resized",
        min_area: float = 0.16,
        flip: float = 0.5,
        normalize: Normalize = "imagenet",
    ) -> None:
        self.preparation = Preparation(
            resize=resize, square=square, crop=crop, train_crop=train_crop, min_area=min_area, flip=flip,
            normalize=normalize,
        )  # fmt: skip
        self.train = self._split(parts.train)
        self.test = self._split(parts.test)
        self.gallery = None if parts.gallery is None else self._split(parts.gallery)

    def of_files(self, files: Sequence[Path]) -> FileSplit:
        """Other images, prepared as this data set's; they are of one class, without a name."""
        return FileSplit({"": files}, self.preparation)

    def _split(self, classes: Classes) -> FileSplit:
        for files in classes.values():
            for file in files:
                check_header(file)
        return FileSplit(classes, self.preparation)


def with_image_options(read: Callable[..., Parts]) -> Callable[..., FileDataset]:
    """A factory of the data set that `read` finds: its options are those of `read` and those of `FileDataset`.

    Its signature says so, as the registry, which checks recipes by it, needs to see.
    """
    own = inspect.signature(read).parameters
    common = {
        name: parameter
        for name, parameter in inspect.signature(FileDataset).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    signature = inspect.Signature([*own.values(), *common.values()])

    def make(*arguments: Any, **options: Any) -> FileDataset:
        given = signature.bind(*arguments, **options).arguments
        image_options = {name: given.pop(name) for name in [*given] if name in common}
        return FileDataset(read(**given), **image_options)

    make.__signature__ = signature  # type: ignore[attr-defined]
    make.__annotations__ = typing.get_type_hints(FileDataset.__init__) | typing.get_type_hints(read)
    make.__name__, make.__module__, make.__doc__ = read.__name__, read.__module__, read.__doc__
    make.__qualname__ = read.__qualname__
    return make

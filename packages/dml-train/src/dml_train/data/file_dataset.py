"""Data sets of image files: one class for all of them, whose options each adds to its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from dml_core import options_of, signature_of
from dml_train.data.bad_images import drop_bad_images, find_bad_images, refuse_bad_images
from dml_train.data.completeness import check_complete_image
from dml_train.data.file_split import FileSplit
from dml_train.data.image_reader import PhotographReader
from dml_train.data.packed import open_pack
from dml_train.data.parts import Parts
from dml_train.data.preparation import Interpolation, Normalize, Preparation, TrainCrop
from dml_train.data.prepare import MAX_PIXELS

OnBadImage = Literal["error", "skip"]


class FileDataset:
    """A `Dataset` of image files.

    Args:
        parts: the files of each part.
        resize, square, crop, train_crop, min_area, flip, normalize, interpolation, max_pixels: see `Preparation`.
        on_bad_image: ``"error"``: every file's header and end are read here, and one damaged in between ends the
            run; ``"skip"``: every file is decoded here, and those that can't be are left out and logged, so that
            batches are a function of the files that are good.
        cache: a folder for decoded and resized images, see `open_pack`; None for none. It changes no number.

    Attributes:
        train, test: the splits.
        gallery: None where the test split is its own.
        in_channels: 3.

    Raises:
        DmlError: an unusable file, unless ``on_bad_image="skip"``; a part without images.
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
        interpolation: Interpolation = "bilinear",
        max_pixels: int = MAX_PIXELS,
        on_bad_image: OnBadImage = "error",
        cache: str | None = None,
    ) -> None:
        if on_bad_image not in get_args(OnBadImage):
            raise ValueError(
                f"on_bad_image is {on_bad_image!r}; expected one of: {', '.join(get_args(OnBadImage))}"
            )
        preparation = Preparation(
            resize=resize, square=square, crop=crop, train_crop=train_crop, min_area=min_area, flip=flip,
            normalize=normalize, interpolation=interpolation, max_pixels=max_pixels,
        )  # fmt: skip
        # By text: to hash or to compare a Path takes several times as long.
        by_text = {
            str(file): file
            for classes in parts.by_name().values()
            for of_class in classes.values()
            for file in of_class
        }
        files = [by_text[text] for text in sorted(by_text)]
        pack = None if cache is None else open_pack(files, preparation, Path(cache))
        if pack is not None:
            bad = {files[place]: reason for place, reason in pack.bad.items()}
        elif on_bad_image == "error":
            bad = find_bad_images(files, check_complete_image, "check images")
        else:
            bad = find_bad_images(files, preparation.load_resized, "check images")
        if on_bad_image == "error":
            refuse_bad_images(bad)
        left = drop_bad_images(parts, bad)
        places = None if pack is None else {str(file): place for place, file in enumerate(files)}
        splits = {
            name: FileSplit(classes, preparation, pack, places, left.groups)
            for name, classes in left.by_name().items()
        }
        self.train, self.test, self.gallery = splits["train"], splits["test"], splits.get("gallery")


_IMAGE_OPTIONS = tuple(option for option in options_of(FileDataset) if option.name != "parts")


class FileDatasetFactory:
    """A data set's factory: it makes the `FileDataset` of the files that `read` lists.

    Args:
        read: lists the files of each part, from the data set's own options.

    Its options are those of `read`, then those of `FileDataset`.
    """

    image_reader = PhotographReader

    def __init__(self, read: Callable[..., Parts]) -> None:
        self.read = read
        self.__signature__ = signature_of([*options_of(read), *_IMAGE_OPTIONS])
        self.__qualname__ = read.__qualname__  # for messages

    def __call__(self, *arguments: Any, **options: Any) -> FileDataset:
        """Read the parts, and make the data set with the image options among `options`."""
        image = {option.name: options.pop(option.name) for option in _IMAGE_OPTIONS if option.name in options}
        return FileDataset(self.read(*arguments, **options), **image)

    def training_files(self, **options: Any) -> Sequence[Path]:
        """List the training files, good or bad."""
        own = {option.name for option in options_of(self.read)}
        parts = self.read(**{name: value for name, value in options.items() if name in own})
        return [file for files in parts.train.values() for file in files]

"""A folder of images, one folder a class.

Shapes: `N` items, `B` batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from dml_core import DmlError
from dml_train.data.array_split import uniforms

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
# The mean and deviation of ImageNet's pixels, by which torchvision's weights expect their input.
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
_GROUND = (255, 255, 255)  # behind what is transparent


class ImageFolder:
    """A `Dataset` of the images in ``root/CLASS/**``, split by class.

    If `root` holds the folders ``train`` and ``test`` and no other, they are the splits, each with its folders of
    classes; likewise ``train``, ``query`` and ``gallery``, where queries are searched in a gallery of the same
    classes. Otherwise the classes are shuffled by `split_seed` and the first `train_fraction` of them train.

    Args:
        root: the folder.
        size: pixels a side of the network's input.
        resize: pixels of the shorter side, of which the middle `size` × `size` is evaluated.
        train_fraction: share of the classes that train, above 0 and below 1.
        split_seed: of the shuffle. Not the run's seed: runs of different seeds are measured on the same classes.
        crop: the smallest share of an image's area that a random training crop covers, above 0 and at most 1.
        flip: the chance that a training image is mirrored, 0 to 1.

    Attributes:
        train, test: the splits, classes and files in the order of their names.
        gallery: the folder ``gallery``; None without one, where the test split is its own.
        in_channels: 3.

    Raises:
        DmlError: no such folder, fewer than two classes with images, a class in both splits, or a file that isn't
            a readable image (every file's header is read here; pixels are decoded on demand).
        ValueError: a number out of its range.
    """

    in_channels = 3

    def __init__(
        self,
        root: str,
        size: int = 224,
        resize: int = 256,
        train_fraction: float = 0.5,
        split_seed: int = 0,
        crop: float = 0.2,
        flip: float = 0.5,
    ) -> None:
        if not 1 <= size <= resize:
            raise ValueError(f"size is {size} and resize {resize}; expected 1 <= size <= resize")
        if not 0.0 < crop <= 1.0 or not 0.0 <= flip <= 1.0:
            raise ValueError(f"crop is {crop} and flip {flip}; expected crop in (0, 1] and flip in [0, 1]")
        if not 0.0 < train_fraction < 1.0:
            raise ValueError(f"train_fraction is {train_fraction}; expected a share above 0 and below 1")
        folder = Path(root).expanduser()
        if not folder.is_dir():
            raise DmlError(f"image folder {folder} is not a folder; expected ROOT/CLASS/IMAGE")
        children = {child.name for child in _folders(folder)}
        gallery: dict[str, list[Path]] | None = None
        if children == {"train", "test"}:
            train, test = _part(folder / "train"), _part(folder / "test")
            _refuse_common(folder, train, test, "test")
        elif children == {"train", "query", "gallery"}:
            train, test, gallery = (_part(folder / name) for name in ("train", "query", "gallery"))
            _refuse_common(folder, train, test, "query")
            _refuse_common(folder, train, gallery, "gallery")
            if not test.keys() & gallery.keys():
                raise DmlError(
                    f"no class of {folder / 'query'} is in {folder / 'gallery'} "
                    f"(e.g. {min(test)!r} and {min(gallery)!r}); "
                    "a query's matches are in the gallery's folder of its name"
                )
        else:
            train, test = _split_classes(folder, train_fraction, split_seed)
        self.train = FileSplit(train, size, resize, crop, flip)
        self.test = FileSplit(test, size, resize, crop, flip)
        self.gallery = None if gallery is None else FileSplit(gallery, size, resize, crop, flip)


class FileSplit:
    """A `Split` of image files, decoded on demand.

    Args:
        classes: the files of each class.
        size, resize, crop, flip: see `ImageFolder`.

    Raises:
        DmlError: a file that isn't a readable image, or no files.
    """

    def __init__(
        self, classes: Mapping[str, Sequence[Path]], size: int, resize: int, crop: float, flip: float
    ) -> None:
        self.class_names = tuple(classes)
        self.files = [file for files in classes.values() for file in files]
        self.labels = np.repeat(np.arange(len(classes)), [len(files) for files in classes.values()]).astype(
            np.int64
        )
        self._size, self._resize, self._crop, self._flip = size, resize, crop, flip
        for file in self.files:
            _check_header(file)

    def __len__(self) -> int:
        """The number of items, N."""
        return len(self.files)

    def load(self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None) -> Tensor:
        """(len(indices), 3, size, size) float32, normalised by ImageNet's mean and deviation.

        With seeds, a random crop, mirrored by chance; without, the middle.

        Raises:
            DmlError: a file that can't be decoded.
        """
        pictures = []
        draws_B5 = None if seeds is None else uniforms(seeds, 5)
        for row, index in enumerate(indices):
            image = read_image(self.files[index])
            pictures.append(
                np.asarray(self._middle(image) if draws_B5 is None else self._crops(image, draws_B5[row]))
            )
        images_B3HW = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).to(torch.float32).div_(255.0)
        return images_B3HW.sub_(torch.tensor(MEAN)[:, None, None]).div_(
            torch.tensor(DEVIATION)[:, None, None]
        )

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """The middle of item `index`, as it is evaluated, (size, size, 3)."""
        return np.asarray(self._middle(read_image(self.files[index])))

    def _middle(self, image: Image.Image) -> Image.Image:
        """The shorter side made `resize` long, then the middle."""
        factor = self._resize / min(image.size)
        width, height = (max(self._resize, round(side * factor)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - self._size) // 2, (height - self._size) // 2
        return image.crop((left, top, left + self._size, top + self._size))

    def _crops(self, image: Image.Image, draws: npt.NDArray[np.float64]) -> Image.Image:
        """A crop of random area, place and ratio of the sides (3/4 to 4/3), mirrored by chance."""
        width, height = image.size
        area = width * height * (self._crop + (1.0 - self._crop) * draws[0])
        ratio = np.exp(np.log(4.0 / 3.0) * (2.0 * draws[1] - 1.0))
        # What is too long for the image is cut off, so that one draw always does.
        w = min(np.sqrt(area * ratio), width)
        h = min(np.sqrt(area / ratio), height)
        left, top = draws[2] * (width - w), draws[3] * (height - h)
        side = (self._size, self._size)
        image = image.resize(side, Image.Resampling.BILINEAR, box=(left, top, left + w, top + h))
        return ImageOps.mirror(image) if draws[4] < self._flip else image


def read_image(file: Path) -> Image.Image:
    """The image upright in RGB, whatever it is stored as.

    It is turned as its EXIF data say; grey, palette, CMYK and 16-bit images are converted; what is transparent is
    white.

    Raises:
        DmlError: if it can't be decoded, naming the file.
    """
    try:
        with Image.open(file) as stored:
            stored.load()
            image = ImageOps.exif_transpose(stored)
        if image.mode.startswith(("I", "F")):  # PIL would clip these to 255
            image = _to_8_bits(image)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, (*_GROUND, 255)), image)
        return image.convert("RGB")
    except Exception as error:  # decoders raise whatever they like: OSError, SyntaxError, struct.error, …
        raise _unreadable(file, error) from error


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Grey values of 16 bits, or of more if any is larger, to 8; floats from [0, 1]."""
    values = np.asarray(image).astype(np.float64)
    most = 1.0 if image.mode == "F" and values.max() <= 1.0 else max(65535.0, float(values.max()))
    return Image.fromarray(np.round(values.clip(0.0, most) * (255.0 / most)).astype(np.uint8))


def _check_header(file: Path) -> None:
    try:
        with Image.open(file) as image:
            if min(image.size) < 1:
                raise ValueError(f"it is {image.size[0]} × {image.size[1]} pixels")
    except Exception as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> DmlError:
    # PIL's own message for an unknown format repeats the file's whole name.
    reason = (
        "not an image" if isinstance(error, UnidentifiedImageError) else f"{type(error).__name__}: {error}"
    )
    return DmlError(f"can't read the image {file}: {reason}; repair or remove the file")


def _folders(folder: Path) -> list[Path]:
    return [child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")]


def _part(folder: Path) -> dict[str, list[Path]]:
    """The classes of one part of a data set that comes in parts."""
    if not (classes := _classes(folder)):
        raise DmlError(f"{folder} holds no folder with images; expected {folder.name}/CLASS/IMAGE")
    return classes


def _refuse_common(folder: Path, train: Mapping[str, object], other: Mapping[str, object], name: str) -> None:
    """Training must not see the classes that embeddings are measured on."""
    if both := sorted(train.keys() & other.keys()):
        raise DmlError(
            f"class {both[0]!r} is in {folder / 'train'} and in {folder / name} ({len(both)} such); "
            "embeddings are measured on classes that training hasn't seen: rename or move one of them"
        )


def _split_classes(folder: Path, train_fraction: float, seed: int) -> list[dict[str, list[Path]]]:
    """Shuffled classes in two parts, each with at least one class, which are sorted again."""
    classes = _classes(folder)
    if len(classes) < 2:
        raise DmlError(
            f"{folder} holds {len(classes)} folders with images ({', '.join(sorted(SUFFIXES))}); "
            "expected ROOT/CLASS/IMAGE with at least two classes"
        )
    names = sorted(classes)
    order = np.random.default_rng(seed).permutation(len(names))
    count = min(max(round(train_fraction * len(names)), 1), len(names) - 1)
    return [{names[c]: classes[names[c]] for c in sorted(part)} for part in np.split(order, [count])]


def _classes(folder: Path) -> dict[str, list[Path]]:
    """The images under each folder, by its name; folders without any are left out."""
    classes = {}
    for child in sorted(_folders(folder)):
        files = sorted(f for f in child.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file())
        if files:
            classes[child.name] = files
    return classes

"""A cache of decoded and resized images in one file, mapped into memory: decoding is done once.

A pack is a folder of its own in the cache's folder:

- ``pixels``: the images one after the other, each (3, H, W) uint8.
- ``index.npz``: where each begins, its height and width, and the checksum of its pixels.
- ``bad.json``: the files that can't be decoded, and why.

Its name is a hash of all that the pixels depend on: names, sizes and times of the files, how they are resized, and
the libraries that do it. Another set of files, or one file changed, is another pack. It is written aside and renamed
when it is whole, and an image's checksum is compared when a process first reads it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import PIL
import torch
from torch import Tensor

from dml_core import DmlError
from dml_train.data.bad_images import read_all
from dml_train.data.preparation import Preparation

_FORMAT = 1


class PackedImages:
    """The images of a pack. It pickles as its path, so that loader processes map the file, too.

    Args:
        folder: the pack's.

    Attributes:
        bad: the files that can't be decoded, by their place in the list that was packed, with the reason.

    Raises:
        DmlError: if the pack is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            with (folder / "index.npz").open("rb") as file, np.load(file, allow_pickle=False) as index:
                self._begin, self._height, self._width, self._checksum = (
                    index[name] for name in ("begin", "height", "width", "checksum")
                )
            self.bad: dict[int, str] = {
                int(place): reason for place, reason in json.loads((folder / "bad.json").read_text()).items()
            }
            pixels = folder / "pixels"
            if pixels.stat().st_size != (size := int(self._begin[-1])):
                raise ValueError(f"{pixels.stat().st_size} bytes of pixels where {size} belong")
            # Copy on write: torch takes no array that can't be written, and nobody writes.
            mapped = np.memmap(pixels, np.uint8, mode="c") if size else np.empty(0, np.uint8)
            self._pixels = mapped.view(np.ndarray)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise self._damaged(str(error)) from error
        self._checked = np.zeros(len(self), dtype=np.bool_)

    def __len__(self) -> int:
        """The number of images, the bad ones among them."""
        return len(self._height)

    def __reduce__(self) -> tuple[type[PackedImages], tuple[Path]]:
        return PackedImages, (self.folder,)

    def image(self, place: int) -> Tensor:
        """The image at this place of the list that was packed, (3, H, W) uint8, in the file's own memory.

        Raises:
            DmlError: if its pixels aren't those that were written.
        """
        pixels = self._pixels[self._begin[place] : self._begin[place + 1]]
        if not self._checked[place]:
            if zlib.crc32(pixels.data) != self._checksum[place]:
                raise self._damaged(f"the pixels of image {place} have another checksum")
            self._checked[place] = True
        return torch.from_numpy(pixels.reshape(3, self._height[place], self._width[place]))

    def _damaged(self, reason: str) -> DmlError:
        return DmlError(
            f"the cache of images {self.folder} is damaged ({reason}); remove it, it is made anew"
        )


def packed(files: Sequence[Path], preparation: Preparation, cache: Path) -> PackedImages:
    """The pack of these files, which is made if it isn't there. Processes that want the same one make it once.

    Args:
        files: (N,) what is packed.
        preparation: how they are resized; the rest of it plays no part.
        cache: the folder that packs lie in; made if it isn't there.

    Raises:
        DmlError: if a file isn't there, the cache can't be written, or the pack that is there is damaged.
    """
    cache = cache.expanduser()
    name = _name(files, preparation)
    if (folder := cache / name).is_dir():
        return PackedImages(folder)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache / f".{name}.lock"):
            if not folder.is_dir():  # another process may have made it meanwhile
                aside = cache / f".{name}.partial"
                shutil.rmtree(aside, ignore_errors=True)
                try:
                    aside.mkdir()
                    _write(files, preparation, aside)
                    aside.rename(folder)
                finally:
                    shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise DmlError(
            f"can't write the cache of images {folder}: {error.strerror}; {len(files):,} images of "
            f"{preparation.resize} pixels take about {_estimate(len(files), preparation)}"
        ) from error
    return PackedImages(folder)


def _name(files: Sequence[Path], preparation: Preparation) -> str:
    """The hash of all that the pixels depend on. The place of the files isn't among it: they may be moved together."""
    common = Path(os.path.commonpath([file.parent for file in files])) if files else Path()
    key = hashlib.sha256(
        repr((_FORMAT, preparation.resize, preparation.square, PIL.__version__, torch.__version__)).encode()
    )
    for file in files:
        try:
            state = file.stat()
        except OSError as error:
            raise DmlError(
                f"can't read the image {file}: {error.strerror}; repair or remove the file"
            ) from error
        key.update(f"{file.relative_to(common)}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    return f"images-{key.hexdigest()[:24]}"


def _write(files: Sequence[Path], preparation: Preparation, folder: Path) -> None:
    begin, shapes, checksums = [0], [], []
    bad: dict[int, str] = {}
    with (folder / "pixels").open("wb") as pixels:
        images = read_all(files, preparation.resized, "decode images")
        for place, (_, image) in enumerate(images):
            if isinstance(image, DmlError):
                bad[place] = str(image)
                image = torch.empty(3, 0, 0, dtype=torch.uint8)
            content = image.contiguous().numpy()
            pixels.write(content.data)
            begin.append(begin[-1] + content.nbytes)
            shapes.append(content.shape[1:])
            checksums.append(zlib.crc32(content.data))
        pixels.flush()
        os.fsync(pixels.fileno())
    height, width = np.array(shapes, dtype=np.int32).reshape(-1, 2).T
    (folder / "bad.json").write_text(json.dumps(bad))
    with (folder / "index.npz").open("wb") as index:
        np.savez(
            index,
            begin=np.array(begin, dtype=np.int64),
            height=height,
            width=width,
            checksum=np.array(checksums, dtype=np.uint32),
        )
        index.flush()
        os.fsync(index.fileno())


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Wait until no other process is here; the lock goes with the process, however that ends."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _estimate(images: int, preparation: Preparation) -> str:
    sides = preparation.resize**2 * (1.0 if preparation.square else 4.0 / 3.0)
    return f"{max(images * 3 * sides / 1e9, 0.001):.3g} GB"

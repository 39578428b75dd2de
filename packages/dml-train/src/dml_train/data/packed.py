"""A cache of decoded and resized images in a memory-mapped file, so that images are decoded only
once.

A pack is a subfolder of the cache's folder:

- ``pixels``: the concatenated images, (3, H, W) uint8.
- ``index.npz``: offset, height, width and checksum per image.
- ``bad.json``: the files that can't be decoded, with reasons.

The name is a hash of everything that determines the pixels, so changed files have a different pack.
A pack is written under a temporary name and renamed when complete. A process compares an image's
checksum when it first reads the image.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import PIL
import torch
from torch import Tensor

from dml_core import DmlError
from dml_train.data.bad_images import read_all
from dml_train.data.preparation import Preparation
from dml_train.data.prepare import choose_size
from dml_train.data.stored import Item, file_of, name_of
from dml_train.files import WriteRefused
from dml_train.locks import hold_lock

_FORMAT = 2


class PackedImages:
    """The images of a pack; pickle stores only the path, so that loader processes map the same
    file.

    Raises a `DmlError` if the pack is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            with (
                (folder / "index.npz").open("rb") as file,
                np.load(file, allow_pickle=False) as index,
            ):
                self._begin, self._height, self._width, self._checksum = (
                    index[name] for name in ("begin", "height", "width", "checksum")
                )
            bad = json.loads((folder / "bad.json").read_text())
            # The reasons why files can't be decoded, by position in the packed list.
            self.bad: dict[int, str] = {int(position): reason for position, reason in bad.items()}
            pixels = folder / "pixels"
            if pixels.stat().st_size != (size := int(self._begin[-1])):
                raise ValueError(f"pixels contains {pixels.stat().st_size} bytes; expected {size}")
            # Map with copy-on-write, although the images don't change, since torch warns about
            # read-only arrays.
            mapped = np.memmap(pixels, np.uint8, mode="c") if size else np.empty(0, np.uint8)
            self._pixels = mapped.view(np.ndarray)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise self._damage_error(str(error)) from error
        self._checked = np.zeros(len(self._height), dtype=np.bool_)

    def __reduce__(self) -> tuple[type[PackedImages], tuple[Path]]:
        return PackedImages, (self.folder,)

    def read(self, position: int) -> Tensor:
        """Return the image at a position in the packed list, (3, H, W) uint8, in mapped memory.

        Raise a `DmlError` if the checksum of the pixels is wrong.
        """
        pixels = self._pixels[self._begin[position] : self._begin[position + 1]]
        if not self._checked[position]:
            if zlib.crc32(pixels.data) != self._checksum[position]:
                raise self._damage_error(f"the pixels of image {position} have a wrong checksum")
            self._checked[position] = True
        return torch.from_numpy(pixels.reshape(3, self._height[position], self._width[position]))

    def _damage_error(self, reason: str) -> DmlError:
        return DmlError(
            f"the image cache {self.folder} is damaged ({reason}); remove this folder to create it "
            "again"
        )


def open_pack(files: Sequence[Item], preparation: Preparation, cache: Path) -> PackedImages:
    """Open the pack of these files in the folder `cache`; if there is none, one of the calling
    processes creates it.

    Only the resize options of the preparation matter. Raise a `DmlError` if a file is missing, the
    cache can't be written, or the pack is damaged.
    """
    cache = cache.expanduser()
    name = _hash_inputs(files, preparation)
    if (folder := cache / name).is_dir():
        return PackedImages(folder)
    aside = cache / f".{name}.partial"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with hold_lock(cache / f".{name}.lock", wait=True):
            if not folder.is_dir():  # another process may have created the pack in the meantime
                shutil.rmtree(aside, ignore_errors=True)
                try:
                    aside.mkdir()
                    _write(files, preparation, aside)
                    aside.rename(folder)
                finally:
                    shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise WriteRefused(
            f"can't write the image cache {folder}: {error.strerror}; {len(files):,} images of "
            f"{preparation.resize} pixels take about {estimate_size(len(files), preparation)}"
        ) from error
    return PackedImages(folder)


def estimate_size(images: int, preparation: Preparation) -> str:
    """Estimate the size of a pack, given the number of photographs."""
    height, width = choose_size(3, 4, preparation.resize, preparation.square)
    megabytes = images * 3 * height * width / 1e6
    return f"{megabytes / 1e3:.3g} GB" if megabytes >= 1e3 else f"{max(megabytes, 1.0):.0f} MB"


def _hash_inputs(files: Sequence[Item], preparation: Preparation) -> str:
    """Return the pack's name: a hash of everything that determines the pixels.

    File names are relative to the common folder, so that the pack can be used when the folder
    moves.
    """
    paths = [file_of(file) for file in files]
    common = Path(os.path.commonpath([path.parent for path in paths])) if files else Path()
    p = preparation
    options = (_FORMAT, p.resize, p.square, p.interpolation, PIL.__version__, torch.__version__)
    key = hashlib.sha256(repr(options).encode())
    for file, path in zip(files, paths):
        try:
            state = path.stat()
        except OSError as error:
            raise DmlError(
                f"can't read the image {name_of(file)}: {error.strerror}; repair or remove the file"
            ) from error
        place = name_of(file).removeprefix(str(path))
        entry = f"{path.relative_to(common)}{place}\0{state.st_size}\0{state.st_mtime_ns}\n"
        key.update(entry.encode(errors="surrogateescape"))  # a name need not be UTF-8
    return f"images-{key.hexdigest()[:24]}"


def _write(files: Sequence[Item], preparation: Preparation, folder: Path) -> None:
    begin, shapes, checksums = [0], [], []
    bad: dict[int, str] = {}
    with (folder / "pixels").open("wb") as pixels, (folder / "index.npz").open("wb") as index:
        for position, (_, image) in enumerate(
            read_all(files, preparation.load_resized, "decode images")
        ):
            if isinstance(image, DmlError):
                bad[position] = str(image)
                image = torch.empty(3, 0, 0, dtype=torch.uint8)
            content = image.contiguous().numpy()
            pixels.write(content.data)
            begin.append(begin[-1] + content.nbytes)
            shapes.append(content.shape[1:])
            checksums.append(zlib.crc32(content.data))
        height, width = np.array(shapes, dtype=np.int32).reshape(-1, 2).T
        np.savez(
            index,
            begin=np.array(begin),
            height=height,
            width=width,
            checksum=np.array(checksums, np.uint32),
        )
        for file in (pixels, index):
            file.flush()
            os.fsync(file.fileno())
    (folder / "bad.json").write_text(json.dumps(bad))

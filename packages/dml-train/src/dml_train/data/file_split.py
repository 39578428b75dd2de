"""A split of image files, decoded on demand or read from a pack.

Shapes: `N` items, `B` batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dml_train.data.packed import PackedImages
from dml_train.data.parts import Classes
from dml_train.data.path_table import PathTable
from dml_train.data.preparation import Preparation


class FileSplit:
    """A `Split` of image files.

    Args:
        classes: the files of each class; labels count the classes in this order.
        preparation: how an image becomes the network's input.
        pack: the decoded and resized images; None decodes each file on demand.
        positions: the index of each file in the pack, by its path.
        groups: the group of each file; None for a split without groups.

    Attributes:
        files: (N,) paths, class by class.
        groups: (N,) strings, if `groups` was given; see `dml_core.GroupedSplit`.
    """

    groups: npt.NDArray[np.str_]

    def __init__(
        self,
        classes: Classes,
        preparation: Preparation,
        pack: PackedImages | None = None,
        positions: Mapping[str, int] | None = None,
        groups: Mapping[Path, str] | None = None,
    ) -> None:
        self.class_names: Sequence[str] = tuple(classes)
        self.files: Sequence[Path] = PathTable(file for files in classes.values() for file in files)
        sizes = [len(files) for files in classes.values()]
        self.labels: npt.NDArray[np.int64] = np.repeat(np.arange(len(sizes)), sizes).astype(np.int64)
        if groups is not None:
            self.groups = np.array([groups[file] for file in self.files], dtype=np.str_)
        self.preparation = preparation
        self._pack = pack
        places = [] if pack is None or positions is None else [positions[str(file)] for file in self.files]
        self._positions = np.array(places, dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of items, N."""
        return len(self.files)

    def load(self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None) -> Tensor:
        """Load a batch, (len(indices), 3, crop, crop) float32, augmented by the preparation if seeds are given.

        Raises:
            DmlError: a file that can't be decoded, or a damaged pack.
        """
        return self.preparation.make_batch([self._load_resized(int(index)) for index in indices], seeds)

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the centre of item `index`, as evaluation crops it, (crop, crop, 3) uint8."""
        return self.preparation.crop_center(self._load_resized(index)).permute(1, 2, 0).contiguous().numpy()

    def _load_resized(self, index: int) -> Tensor:
        if self._pack is not None:
            return self._pack.read(int(self._positions[index]))
        return self.preparation.load_resized(self.files[index])

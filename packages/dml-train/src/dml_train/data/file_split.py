"""A split of image files, decoded when they are asked for or taken from a pack.

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
from dml_train.data.preparation import Preparation


class FileSplit:
    """A `Split` of image files.

    Args:
        classes: the files of each class; labels count the classes in this order.
        preparation: how an image becomes the network's input.
        pack: where the images are, decoded and resized; None if nowhere.
        places: of the files in the pack.

    Attributes:
        files: (N,), the paths, class by class.
    """

    def __init__(
        self,
        classes: Classes,
        preparation: Preparation,
        pack: PackedImages | None = None,
        places: Mapping[Path, int] | None = None,
    ) -> None:
        self.class_names: Sequence[str] = tuple(classes)
        self.files: Sequence[Path] = [file for files in classes.values() for file in files]
        sizes = [len(files) for files in classes.values()]
        self.labels: npt.NDArray[np.int64] = np.repeat(np.arange(len(sizes)), sizes).astype(np.int64)
        self.preparation = preparation
        self._pack = pack
        self._places = [] if pack is None or places is None else [places[file] for file in self.files]

    def __len__(self) -> int:
        """The number of items, N."""
        return len(self.files)

    def load(self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None) -> Tensor:
        """(len(indices), 3, crop, crop) float32; with seeds, augmented as the preparation says.

        Raises:
            DmlError: a file that can't be decoded, or a pack that is damaged.
        """
        return self.preparation.batch([self._resized(int(index)) for index in indices], seeds)

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """The part of item `index` that is evaluated, (crop, crop, 3)."""
        return self.preparation.middle(self._resized(index)).permute(1, 2, 0).contiguous().numpy()

    def _resized(self, index: int) -> Tensor:
        if self._pack is not None:
            return self._pack.image(self._places[index])
        return self.preparation.resized(self.files[index])

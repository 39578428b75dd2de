"""Protocols of data sets, their splits, readers of images, and batch samplers.

Shapes: `N` items of a split, `C` classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from dml_core.protocols.evaluation import MiningEvaluator
    from dml_eval_rs.matches.labels import Labels
    from dml_eval_rs.matches.relevance import Relevance


class Split(Protocol):
    """One part of a data set: labels in memory, images loaded on request."""

    labels: npt.NDArray[np.int64]  # (N,), 0-based within the split
    class_names: Sequence[str]  # (C,), class_names[labels[i]] names item i

    def __len__(self) -> int:
        """Return the number of items, N."""

    def load(
        self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None
    ) -> torch.Tensor:
        """Load the network's input for these items: (len(indices), channels, height, width), float32.

        With `seeds`, images are augmented, row i as a function of ``seeds[i]`` alone, so that neither the number
        of workers, nor that of ranks, nor a restart changes a run. Without, they are prepared for evaluation.
        """

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Return item `index` as people see it, (height, width, 3), for reports."""


@runtime_checkable
class FileBackedSplit(Split, Protocol):
    """A `Split` of image files: `dml search` lists its items by path, and excludes a query from its own results."""

    files: Sequence[Path]  # (N,)


@runtime_checkable
class GroupedSplit(Split, Protocol):
    """A `Split` whose items have a group, such as the camera that took them.

    A query's ranking excludes the gallery items of the query's label *and* group: the rule of re-identification. Test
    split and gallery both have groups, or neither has.
    """

    groups: npt.NDArray[Any]  # (N,) integers or strings; equal ones are one group, also in another split


class Dataset(Protocol):
    """The product of a `dml_datasets` factory. The classes of `train` and of `test` are disjoint."""

    train: Split
    test: Split  # the queries, and also the gallery if `gallery` is None
    gallery: Split | None
    in_channels: int


@runtime_checkable
class RelatedDataset(Dataset, Protocol):
    """A `Dataset` whose queries, the items of `test`, match by more than their labels and groups.

    Listed items are items of `gallery`, or of `test` if there is no gallery. Training and reports keep the labels.
    """

    # `Relevance` lists each query's matches, which replace labels and groups: no split has groups. `Labels` exclude
    # more items: ``Labels(test.labels, test.groups, ignored=(offsets, indices))``, without groups if no split has any.
    matches: Labels | Relevance


@runtime_checkable
class StoredImage(Protocol):
    """An encoded image inside a larger file, such as an archive or a table."""

    @property
    def name(self) -> str:
        """Name the image for messages: ``"photos.tar: 17.jpg"``."""

    def read(self) -> bytes:
        """Read the encoded image: what a file of its own would contain."""


class ImageReader(Protocol):
    """A reader of images that prepares them as a data set prepares its own."""

    in_channels: int
    input_shape: tuple[int, int, int]  # channels, height, width of the network's input

    def of_images(self, images: Sequence[Path | StoredImage | npt.NDArray[np.uint8]]) -> Split:
        """Return these images as a split of one class without a name; files are decoded on request.

        An image is a file, one inside a file, or an array (height, width, 3) of RGB or (height, width) of grey values.
        """

    def describe(self) -> dict[str, Any]:
        """Describe in JSON's types how an image becomes the network's input, for use without this toolkit."""


@runtime_checkable
class ImageReadingFactory(Protocol):
    """A `dml_datasets` factory that makes an `ImageReader`, so that trained networks can embed a user's images."""

    def __call__(self, **options: Any) -> Dataset:
        """Make the data set."""

    def image_reader(self, **options: Any) -> ImageReader:
        """Return the reader for the options of a recipe's ``[dataset]`` table; the data set's files may be absent."""


@runtime_checkable
class TrainingFilesFactory(Protocol):
    """A `dml_datasets` factory that lists its training images, so that `dml embed` can tell them from unseen ones."""

    def __call__(self, **options: Any) -> Dataset:
        """Make the data set."""

    def training_files(self, **options: Any) -> Sequence[Path]:
        """List the training files for the options of a recipe's ``[dataset]`` table, without decoding them."""


class BatchSampler(Protocol):
    """The product of a `dml_samplers` factory: global batches, each a function of (seed, epoch, position)."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""

    def batch_at(self, epoch: int, position: int) -> npt.NDArray[np.int64]:
        """Return the indices of the global batch at `position` of `epoch`."""


@runtime_checkable
class MiningSampler(BatchSampler, Protocol):
    """A `BatchSampler` of hard negatives, which the trainer has it find between epochs.

    Its batches are a function of (seed, epoch, position, negatives). Before an epoch that `mines_before` names, the
    trainer embeds the training split without augmentation, and gives all ranks the negatives found. A checkpoint
    holds them, since the weights that found them are gone by then.
    """

    @property
    def negatives(self) -> npt.NDArray[np.int64] | None:
        """The negatives in use, (N, k) indices of items, -1 for none; None before any are found."""

    def mines_before(self, epoch: int) -> bool:
        """Tell whether new negatives are due before the first batch of an epoch, counted from 0."""

    def find_negatives(
        self, evaluator: MiningEvaluator, embeddings: npt.NDArray[Any]
    ) -> npt.NDArray[np.int64]:
        """Find the negatives, (N, k), in the items' embeddings (N, D). The sampler's batches don't change."""

    def set_negatives(self, negatives: npt.NDArray[np.int64] | None) -> None:
        """Use these negatives, (N, k), from now on."""

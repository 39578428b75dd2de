"""Protocols of data sets, splits, image readers and batch samplers.

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
    """A part of a data set, with labels in memory and images that are loaded when requested."""

    labels: npt.NDArray[np.int64]  # (N,), 0-based within the split
    class_names: Sequence[str]  # (C,), class_names[labels[i]] names item i

    def __len__(self) -> int:
        """Return the number of items, N."""

    def load(
        self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None
    ) -> torch.Tensor:
        """Load the network's input for these items: (len(indices), channels, height, width),
        float32.

        If `seeds` is given, images are augmented. Row i must depend only on item i and
        ``seeds[i]``, so that neither the number of workers or ranks nor a restart changes a run. By
        default, images are prepared for evaluation.
        """

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the image of item `index` to show in reports, (height, width, 3)."""


@runtime_checkable
class FileBackedSplit(Split, Protocol):
    """A `Split` of image files: `dml search` lists items by path, and excludes the query from the
    results.
    """

    files: Sequence[Path]  # (N,)


@runtime_checkable
class AugmentedSplit(Split, Protocol):
    """A `Split` that shows augmented images: a report shows what the network sees in training."""

    def augmented_picture(self, index: int, seed: int) -> npt.NDArray[np.uint8]:
        """Return an image that ``load([index], [seed])`` gives, to show in reports, (height, width,
        3).
        """


@runtime_checkable
class GroupedSplit(Split, Protocol):
    """A `Split` with a group per item, such as the camera that took the image.

    As usual in re-identification, a query's ranking excludes gallery items that have both the label
    *and* the group of the query. If the test split has groups, the gallery must also have groups,
    and vice versa.
    """

    groups: npt.NDArray[
        Any
    ]  # (N,) integers or strings; equal values are the same group in all splits


class Dataset(Protocol):
    """A data set, made by a `dml_datasets` factory. The classes of `train` and `test` must be
    disjoint.
    """

    train: Split
    test: Split  # the queries, and also the gallery if `gallery` is None
    gallery: Split | None
    in_channels: int


@runtime_checkable
class RelatedDataset(Dataset, Protocol):
    """A `Dataset` that defines matches of the queries (the items of `test`) by more than label and
    group.

    `matches` refers to items of `gallery`, or of `test` if a gallery is not given. Training and
    reports use the labels.
    """

    # Use `Relevance` to list matches by query; then splits must not have groups. Use `Labels` to
    # exclude more items: ``Labels(test.labels, test.groups, ignored=(offsets, indices))``; omit
    # groups if splits do not have groups.
    matches: Labels | Relevance


@runtime_checkable
class StoredImage(Protocol):
    """An encoded image inside a larger file, such as an archive or a table."""

    @property
    def name(self) -> str:
        """The name to show in messages, for example ``"photos.tar: 17.jpg"``."""

    def read(self) -> bytes:
        """Read the encoded image: the bytes that an image file would contain."""


class ImageReader(Protocol):
    """A reader that prepares a user's images like the images of a data set."""

    in_channels: int
    input_shape: tuple[int, int, int]  # channels, height, width of the network's input

    def of_images(self, images: Sequence[Path | StoredImage | npt.NDArray[np.uint8]]) -> Split:
        """Make a split of these images, with a single unnamed class; files are decoded when
        requested.

        An image can be a file, a `StoredImage`, or an array: RGB (height, width, 3) or grey values
        (height, width).
        """

    def describe(self) -> dict[str, Any]:
        """Describe, in JSON types, how to convert an image to the network's input without this
        toolkit.
        """


@runtime_checkable
class ImageReadingFactory(Protocol):
    """A `dml_datasets` factory that also makes an `ImageReader`, so that networks can embed a
    user's images.
    """

    def __call__(self, **options: Any) -> Dataset:
        """Make the data set."""

    def image_reader(self, **options: Any) -> ImageReader:
        """Make the reader for the options of a recipe's ``[dataset]`` table. The data set's files
        can be absent.
        """


@runtime_checkable
class TrainingFilesFactory(Protocol):
    """A `dml_datasets` factory that lists training images, so that `dml embed` can tell seen from
    unseen images.
    """

    def __call__(self, **options: Any) -> Dataset:
        """Make the data set."""

    def training_files(self, **options: Any) -> Sequence[Path]:
        """List the training files for the options of a recipe's ``[dataset]`` table, without
        decoding images.
        """


class BatchSampler(Protocol):
    """A sampler of global batches, made by a `dml_samplers` factory; batches depend only on (seed,
    epoch, position).
    """

    def __len__(self) -> int:
        """Return the number of batches per epoch."""

    def batch_at(self, epoch: int, position: int) -> npt.NDArray[np.int64]:
        """Return the indices of the global batch at `position` of `epoch`."""


@runtime_checkable
class MiningSampler(BatchSampler, Protocol):
    """A `BatchSampler` that uses hard negatives, which the trainer finds between epochs.

    Batches depend only on (seed, epoch, position, negatives). If `mines_before` is true for the
    next epoch, the trainer embeds the training split (not augmented) and passes the mined negatives
    to all ranks. Checkpoints contain the negatives, since a resumed run can't compute them again
    without the earlier weights.
    """

    @property
    def negatives(self) -> npt.NDArray[np.int64] | None:
        """The negatives in use, (N, k) indices of items padded with -1; None if negatives haven't
        been found yet.
        """

    def mines_before(self, epoch: int) -> bool:
        """Tell whether to find new negatives before the first batch of `epoch`, which counts from
        0.
        """

    def find_negatives(
        self, evaluator: MiningEvaluator, embeddings: npt.NDArray[Any]
    ) -> npt.NDArray[np.int64]:
        """Find negatives (N, k) in the embeddings (N, D) of all items. This must not change the
        batches.
        """

    def set_negatives(self, negatives: npt.NDArray[np.int64] | None) -> None:
        """Use these negatives, (N, k), from now on."""

"""What a plugin provides (`Component`), and the protocols that components follow.

Nothing here is inherited: a class follows a protocol by having its attributes and methods. The trainer, the
wrappers and the registry rely on these protocols alone.

Shapes: `B` batch, `D` embedding dimension, `C` classes, `N` items of a split, `Q` queries, `G` gallery.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from dml_core.options import Option, options_of, takes_any_option

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(/[A-Za-z0-9]+)?")


class Component:
    """A named object that a plugin provides, with the factory that makes it.

    Args:
        name: the name in recipes, in kebab-case (``"norm-softmax"``). A family of another library's classes may
            have a prefix (``"pml/ContrastiveLoss"``).
        factory: called with the keys of the recipe's table and with the context (`dml_core.CONTEXT`) among its
            options. Usually a class.
        summary: one line for listings.
        source: the paper and its equations, or another origin; empty if there is nothing to cite.
        options: what the factory takes by keyword, in the order of listings; by default, the parameters of its
            signature. A factory that passes ``**options`` on declares them.

    Attributes:
        takes_any_option: whether the factory takes keys beyond `options`: its signature has ``**options``, and
            they aren't declared.

    Raises:
        ValueError: if the name isn't kebab-case, or the summary is empty or longer than a line.
        TypeError: if the factory can't be called, or its options are neither declared nor in a signature that
            Python can read.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[..., Any],
        summary: str,
        source: str = "",
        options: Sequence[Option] | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"component name {name!r} is not kebab-case; expected lower-case words joined by '-', "
                "e.g. 'ranked-list', with at most one 'family/' before a class name"
            )
        if not callable(factory):
            raise TypeError(f"component {name!r}: factory is {factory!r}; expected a class or function")
        if not summary.strip() or "\n" in summary:
            raise ValueError(f"component {name!r}: summary is {summary!r}; expected one line of text")
        self.name: Final = name
        self.factory: Final = factory
        self.summary: Final = summary
        self.source: Final = source
        try:
            self.options: Final = options_of(factory) if options is None else tuple(options)
            self.takes_any_option: Final = options is None and takes_any_option(factory)
        except TypeError as error:
            raise TypeError(f"component {name!r}: {error}") from error

    def __repr__(self) -> str:
        return f"Component({self.name!r}, {self.factory!r}, {self.summary!r})"


# ---------------------------------------------------------------------------------------------- losses


@runtime_checkable
class PairLoss(Protocol):
    """A loss that compares instances with instances.

    Without a gallery, the batch is its own gallery, and each row excludes itself by index. The rows of a memory or
    of another rank are passed as a gallery; no row of it is excluded.
    """

    def __call__(
        self,
        embeddings: torch.Tensor,  # (B, D), any floating dtype, not necessarily normalised
        labels: torch.Tensor,  # (B,), integer
        gallery: torch.Tensor | None = None,  # (G, D)
        gallery_labels: torch.Tensor | None = None,  # (G,), integer
    ) -> torch.Tensor:  # ()
        """Return the loss, a scalar that back-propagates even where it is zero."""
        ...


class ClassLoss(Protocol):
    """A loss that compares instances with class weights; `is_class_loss` recognises it by `class_weights`."""

    class_weights: torch.Tensor  # (C, D)

    def __call__(
        self,
        embeddings: torch.Tensor,  # (B, D)
        labels: torch.Tensor,  # (B,), integer in [0, C)
        class_weights: torch.Tensor | None = None,  # (C', D) instead of the module's own
    ) -> torch.Tensor:  # ()
        """Return the loss, a scalar that back-propagates even where it is zero."""
        ...


def is_class_loss(loss: object) -> bool:
    """Whether a loss is a `ClassLoss`, which compares with class weights, and not a `PairLoss`."""
    return hasattr(loss, "class_weights")


class SubsampledClasses(Protocol):
    """A class loss that compares with some of its classes at each call; optional, asked by `class_fraction_of`."""

    class_fraction: float  # in (0, 1]; 1: all classes


def class_fraction_of(loss: object) -> float:
    """Return the fraction of its classes that a loss compares with: all, 1, unless it is a `SubsampledClasses`."""
    fraction: float = getattr(loss, "class_fraction", 1.0)
    return fraction


class MultiCenter(Protocol):
    """A class loss with several rows of `class_weights` for each class; optional, asked by `centers_per_class_of`.

    The rows of a class are consecutive, and labels count classes.
    """

    centers_per_class: int  # at least 1


def centers_per_class_of(loss: object) -> int:
    """Return how many rows of class weights a loss has for each class: 1, unless it is a `MultiCenter`."""
    centers: int = getattr(loss, "centers_per_class", 1)
    return centers


class Rows(NamedTuple):
    """The rows of a parameter that a rank stores: as many as its tensor has, from `first` on, out of `total`."""

    first: int
    total: int


@runtime_checkable
class ShardedLoss(Protocol):
    """A loss, or a module in one, that stores on each rank only some rows of a parameter.

    The ranks' rows follow one another in the order of the ranks, without gap. The trainer doesn't reduce such a
    parameter's gradient over the ranks, and saves parameter and optimizer state with all rows.
    """

    def sharded_parameters(self) -> Mapping[str, Rows]:
        """Return this rank's rows of each such parameter, by its name in the module."""
        ...


class ClassShard(Protocol):
    """The classes whose weights this rank stores, with reductions over all ranks' classes.

    Both methods take logits z of this rank's classes, (B, L) and any float dtype, and labels among all ranks'
    classes, (B,); every rank must call them, in the same order. They return (B,), the same on every rank.
    """

    class_weights: torch.Tensor  # (L, D), of the classes `first` to `first` + L; L may be 0
    first: int
    num_classes: int  # C, of all ranks

    def true_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return z_y, the logit of each row's true class, from the rank that stores the class."""
        ...

    def other_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return log Σ_{c≠y} exp(z_c) over the classes of all ranks; −∞ if there is one class."""
        ...


class ShardableLoss(ClassLoss, Protocol):
    """A class loss that ranks can compute when each stores the weights of some classes.

    Its one parameter is `class_weights`, with a row for each class. `is_shardable` recognises it.
    """

    def sharded_forward(
        self,
        embeddings: torch.Tensor,  # (B, D), float32 or float64, the same on every rank
        labels: torch.Tensor,  # (B,), integer in [0, C), the same on every rank
        shard: ClassShard,
    ) -> torch.Tensor:  # ()
        """Return the loss over the classes of all ranks, the same on every rank.

        `shard` supplies what depends on the other ranks' classes. The gradients are those of the whole loss, however
        it is composed: each rank back-propagates its share of the value, and the embeddings' gradients are summed.
        """
        ...


def is_shardable(loss: object) -> TypeGuard[ShardableLoss]:
    """Whether a loss is a `ShardableLoss`; `isinstance` misses a module's parameters from Python 3.12 on."""
    return is_class_loss(loss) and callable(getattr(loss, "sharded_forward", None))


@runtime_checkable
class SparseLoss(Protocol):
    """A loss, or a module in one, some of whose parameters get a sparse gradient; few optimizers support one.

    The trainer asks once, right after construction, and chooses the parameters' optimizer accordingly.
    """

    def sparse_parameters(self) -> Sequence[str]:
        """Return the names of these parameters in the module."""
        ...


# ------------------------------------------------------------------------------------- data and batches


class Split(Protocol):
    """One part of a data set: labels in memory, images loaded on request."""

    labels: npt.NDArray[np.int64]  # (N,), 0-based within the split
    class_names: Sequence[str]  # (C,), class_names[labels[i]] names item i

    def __len__(self) -> int:
        """Return the number of items, N."""
        ...

    def load(
        self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None
    ) -> torch.Tensor:
        """Load the network's input for these items: (len(indices), channels, height, width), float32.

        With `seeds`, images are augmented, row i as a function of ``seeds[i]`` alone, so that neither the number
        of workers, nor that of ranks, nor a restart changes a run. Without, they are prepared for evaluation.
        """
        ...

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Return item `index` as people see it, (height, width, 3), for reports."""
        ...


@runtime_checkable
class FileBackedSplit(Split, Protocol):
    """A `Split` of image files: `dml search` lists its items by path, and excludes a query from its own results."""

    files: Sequence[Path]  # (N,)


class Dataset(Protocol):
    """The product of a `dml_datasets` factory. The classes of `train` and of `test` are disjoint."""

    train: Split
    test: Split  # the queries, and also the gallery if `gallery` is None
    gallery: Split | None
    in_channels: int


class ImageReader(Protocol):
    """A reader of images that prepares them as a data set prepares its own."""

    in_channels: int
    input_shape: tuple[int, int, int]  # channels, height, width of the network's input

    def of_images(self, images: Sequence[Path | npt.NDArray[np.uint8]]) -> Split:
        """Return these images as a split of one class without a name; files are decoded on request.

        An image is a file, or an array (height, width, 3) of RGB or (height, width) of grey values.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Describe in JSON's types how an image becomes the network's input, for use without this toolkit."""
        ...


@runtime_checkable
class ImageReadingFactory(Protocol):
    """A `dml_datasets` factory that makes an `ImageReader`, so that trained networks can embed a user's images."""

    def __call__(self, **options: Any) -> Dataset:
        """Make the data set."""
        ...

    def image_reader(self, **options: Any) -> ImageReader:
        """Return the reader for the options of a recipe's ``[dataset]`` table; the data set's files may be absent."""
        ...


class BatchSampler(Protocol):
    """The product of a `dml_samplers` factory: global batches, each a function of (seed, epoch, position)."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        ...

    def batch_at(self, epoch: int, position: int) -> npt.NDArray[np.int64]:
        """Return the indices of the global batch at `position` of `epoch`."""
        ...


# ------------------------------------------------------------------------------------- model and metrics


class Backbone(Protocol):
    """The product of a `dml_backbones` factory: an `nn.Module` from images to feature maps or vectors.

    A backbone with features of several depths has a tuple `num_features`, and returns a tuple of tensors.
    """

    num_features: int | tuple[int, ...]

    def __call__(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Map (B, channels, height, width) to (B, num_features, h, w) or (B, num_features), for each depth."""
        ...


class Evaluation(Protocol):
    """The metrics that an evaluator measured."""

    per_query: Mapping[str, npt.NDArray[np.float64]]  # metric -> (Q,)

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics in JSON's types: ``{"recall": {"1": …}, "map_at_r": …, …}``."""
        ...


class ConfidenceInterval(Protocol):
    """A confidence interval of a mean."""

    @property
    def low(self) -> float:
        """The lower bound."""
        ...

    @property
    def high(self) -> float:
        """The upper bound."""
        ...


class PairedComparison(Protocol):
    """A paired test between two evaluations of the same queries."""

    @property
    def difference(self) -> float:
        """The first evaluation's mean less the second's."""
        ...

    @property
    def p_value(self) -> float:
        """The two-sided p-value."""
        ...

    @property
    def interval(self) -> ConfidenceInterval:
        """The interval of the difference."""
        ...


@runtime_checkable
class IntervalEvaluation(Evaluation, Protocol):
    """An `Evaluation` with confidence intervals, which reports show."""

    def confidence_interval(self, name: str, level: float = 0.95) -> ConfidenceInterval:
        """Return the interval of the mean of ``per_query[name]``."""
        ...


@runtime_checkable
class ComparableEvaluation(Evaluation, Protocol):
    """An `Evaluation` with paired tests, which reports show."""

    def compare(self, other: Evaluation, name: str) -> PairedComparison:
        """Test the metric ``per_query[name]`` against `other`, an evaluation of the same queries in the same order."""
        ...


class Evaluator(Protocol):
    """The product of a `dml_evaluators` factory."""

    def evaluate(
        self,
        embeddings: npt.NDArray[Any],  # (Q, D)
        labels: npt.NDArray[Any],  # (Q,)
        gallery: npt.NDArray[Any] | None = None,  # (G, D)
        gallery_labels: npt.NDArray[Any] | None = None,  # (G,)
    ) -> Evaluation:
        """Measure retrieval (and, on request, clustering) metrics. Without a gallery, each query excludes itself."""
        ...

    def nearest(
        self, queries: npt.NDArray[Any], gallery: npt.NDArray[Any], k: int, *, exclude_self: bool = False
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return scores and indices, both (Q, k), of the k nearest gallery rows, nearest first."""
        ...

    def bytes_per_item(self, dim: int) -> int:
        """Return the size of one stored embedding of `dim` dimensions."""
        ...


class Peers(Protocol):
    """The processes that share an evaluation, as seen by one of them."""

    @property
    def rank(self) -> int:
        """This process's rank, from 0."""
        ...

    @property
    def world_size(self) -> int:
        """The number of processes."""
        ...

    @property
    def threads(self) -> int:
        """The number of threads for this process: those of one machine share its cores."""
        ...

    def all_gather(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Concatenate all ranks' (n,) numbers in the order of the ranks; n may differ between ranks."""
        ...

    def all_reduce(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Sum (n,) counts over all ranks, entry by entry; n is the same on every rank."""
        ...


@runtime_checkable
class ShardedEvaluator(Protocol):
    """An `Evaluator` whose work several processes can share. The trainer runs any other on the first rank alone."""

    def evaluate_sharded(
        self,
        peers: Peers,
        embeddings: npt.NDArray[Any],  # (Q, D); all arrays are complete and the same on every rank
        labels: npt.NDArray[Any],  # (Q,)
        gallery: npt.NDArray[Any] | None = None,  # (G, D)
        gallery_labels: npt.NDArray[Any] | None = None,  # (G,)
    ) -> Evaluation:
        """Return, on every rank, bit for bit what `evaluate` returns. All ranks call it at the same point."""
        ...


@runtime_checkable
class RestoringEvaluator(Protocol):
    """An `Evaluator` that rebuilds an evaluation from its saved values, so that reports needn't evaluate again."""

    def restore(
        self, metrics: Mapping[str, Any], per_query: Mapping[str, npt.NDArray[np.float64]]
    ) -> Evaluation:
        """Rebuild an evaluation.

        Args:
            metrics: holds what its `to_dict` gave, as read from JSON; other keys are ignored.
            per_query: its values for each query.
        """
        ...


class RunLogger(Protocol):
    """The product of a `dml_loggers` factory."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record these values at this step."""
        ...

    def close(self) -> None:
        """Flush buffered values. Called once, also when the run failed."""
        ...


# ------------------------------------------------------------------------------------------------- the run


@dataclass(frozen=True, slots=True)
class Run:
    """The run, as hooks receive it.

    Args:
        directory: the run's folder.
        recipe: the resolved recipe, with every default.
        num_steps: optimizer steps of the whole run.
        rank: this process's rank; rank 0 writes.
        world_size: the number of ranks that share the run.
    """

    directory: Path
    recipe: Mapping[str, Any]
    num_steps: int
    rank: int = 0
    world_size: int = 1

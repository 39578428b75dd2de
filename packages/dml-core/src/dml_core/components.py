"""What a plugin brings (`Component`), and the shapes by which the rest of the toolkit knows it (protocols).

Nothing here is inherited: a class fits a protocol by having its attributes and methods. The trainer, the
wrappers and the registry rely on these shapes and on nothing else.

Shapes: `B` batch, `D` embedding dimension, `C` classes, `N` items of a split, `Q` queries, `G` gallery.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(/[A-Za-z0-9]+)?")


@dataclass(frozen=True, slots=True)
class Component:
    """One named thing that a plugin provides, and how to make it.

    Args:
        name: the name that recipes use, in kebab-case (``"norm-softmax"``). A family that re-exports somebody
            else's classes may put them under a prefix (``"pml/ContrastiveLoss"``).
        factory: called with the keys of the recipe's table, plus whatever context its signature asks for by
            name. Usually a class.
        summary: one line for listings.
        source: where it comes from, e.g. a paper and its equations. Empty if there is nothing to cite.

    Raises:
        ValueError: if the name isn't kebab-case or the summary is empty or longer than a line.
        TypeError: if the factory can't be called, or its signature can't be read.
    """

    name: str
    factory: Callable[..., Any]
    summary: str
    source: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"component name {self.name!r} is not kebab-case; expected lower-case words joined by '-', "
                "e.g. 'ranked-list', with at most one 'family/' before a class name"
            )
        if not callable(self.factory):
            raise TypeError(
                f"component {self.name!r}: factory is {self.factory!r}; expected a class or function"
            )
        try:
            inspect.signature(self.factory)
        except ValueError as error:
            raise TypeError(
                f"component {self.name!r}: factory {self.factory!r} has no signature that can be read; wrap it in a "
                "function whose parameters are its options"
            ) from error
        if not self.summary.strip() or "\n" in self.summary:
            raise ValueError(
                f"component {self.name!r}: summary is {self.summary!r}; expected one line of text"
            )


# ---------------------------------------------------------------------------------------------- losses


@runtime_checkable
class PairLoss(Protocol):
    """Compares instances with instances.

    With no gallery the batch is its own gallery and each row leaves itself out by index. A memory, or another
    rank's rows, come in as a gallery, out of which nothing is left.
    """

    def __call__(
        self,
        embeddings: torch.Tensor,  # (B, D), any floating dtype, not necessarily normalised
        labels: torch.Tensor,  # (B,), integer
        gallery: torch.Tensor | None = None,  # (G, D)
        gallery_labels: torch.Tensor | None = None,  # (G,), integer
    ) -> torch.Tensor:  # ()
        """The loss, a scalar that back-propagates even where it is zero."""
        ...


class ClassLoss(Protocol):
    """Compares instances with class weights; known by its attribute `class_weights`."""

    class_weights: torch.Tensor  # (C, D)

    def __call__(
        self,
        embeddings: torch.Tensor,  # (B, D)
        labels: torch.Tensor,  # (B,), integer in [0, C)
        class_weights: torch.Tensor | None = None,  # (C', D) instead of the module's own
    ) -> torch.Tensor:  # ()
        """The loss, a scalar that back-propagates even where it is zero."""
        ...


def is_class_loss(loss: object) -> bool:
    """Whether a loss compares with class weights (`ClassLoss`) and not with instances (`PairLoss`)."""
    return hasattr(loss, "class_weights")


class Rows(NamedTuple):
    """Which rows of a parameter a rank has: as many as its tensor, from `first` on, out of `total`."""

    first: int
    total: int


@runtime_checkable
class ShardedLoss(Protocol):
    """A loss, or a module in one, that keeps on each rank only some rows of a parameter.

    The ranks' rows follow one another in the order of the ranks, without gap. The trainer leaves such a parameter's
    gradient to its rank, and makes parameter and optimizer state whole where it saves them.
    """

    def sharded_parameters(self) -> Mapping[str, Rows]:
        """By the parameter's name in the module, which of its rows are here."""
        ...


class ClassShard(Protocol):
    """The classes whose weights this rank has, and what a loss needs to know of the other ranks' classes.

    Both methods take logits z of this rank's classes, (B, L) and any float dtype, and labels among all ranks'
    classes, (B,); every rank must call them, in the same order. They give (B,), the same on every rank.
    """

    class_weights: torch.Tensor  # (L, D): those of the classes `first` to `first` + L; there may be none
    first: int
    num_classes: int  # C, of all ranks

    def true_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """z_y, the logit of each row's true class, which one rank has."""
        ...

    def other_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """log Σ_{c≠y} exp(z_c) over the classes of all ranks; −∞ where there is one class."""
        ...


class ShardableLoss(ClassLoss, Protocol):
    """A class loss that can be computed by ranks of which each has the weights of some classes.

    Its one parameter is `class_weights`, with a row for each class. Known by `is_shardable`.
    """

    def sharded_forward(
        self,
        embeddings: torch.Tensor,  # (B, D), float32 or float64, the same on every rank
        labels: torch.Tensor,  # (B,), integer in [0, C), the same on every rank
        shard: ClassShard,
    ) -> torch.Tensor:  # ()
        """What the loss gives for all classes, the same on every rank.

        What it needs of the other ranks' classes, `shard` tells. The gradients are those of the whole loss, however it
        is composed: each rank back-propagates its share of the value, and the embeddings' gradients are summed.
        """
        ...


def is_shardable(loss: object) -> TypeGuard[ShardableLoss]:
    """Whether a loss is a `ShardableLoss`. From Python 3.12 on, `isinstance` doesn't see a module's parameters."""
    return is_class_loss(loss) and callable(getattr(loss, "sharded_forward", None))


@runtime_checkable
class SparseLoss(Protocol):
    """A loss, or a module in one, of whose parameters some get a sparse gradient, which not every optimizer takes.

    What it says holds from its making on: the trainer chooses the parameters' optimizer by it.
    """

    def sparse_parameters(self) -> Sequence[str]:
        """The names of these parameters in the module."""
        ...


# ------------------------------------------------------------------------------------- data and batches


class Split(Protocol):
    """One part of a data set: its labels at once, its images on request."""

    labels: npt.NDArray[np.int64]  # (N,), 0-based within the split
    class_names: Sequence[str]  # (C,), class_names[labels[i]] names item i

    def __len__(self) -> int:
        """The number of items, N."""
        ...

    def load(
        self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None
    ) -> torch.Tensor:
        """The network's input for these items: (len(indices), channels, height, width), float32.

        With `seeds`, images are augmented, and what happens to row i depends on ``seeds[i]`` alone, so that
        neither the number of workers, nor that of ranks, nor a restart changes a run. Without, they are the
        images as evaluated.
        """
        ...

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Item `index` as a person sees it: (height, width, 3), for reports."""
        ...


class Dataset(Protocol):
    """What a `dml_datasets` factory returns. The classes of `train` and of `test` are disjoint."""

    train: Split
    test: Split  # the queries, and the gallery too where `gallery` is None
    gallery: Split | None
    in_channels: int


class BatchSampler(Protocol):
    """What a `dml_samplers` factory returns: global batches, each a function of (seed, epoch, position)."""

    def __len__(self) -> int:
        """Batches an epoch."""
        ...

    def batch_at(self, epoch: int, position: int) -> npt.NDArray[np.int64]:
        """The indices of the global batch at `position` of `epoch`."""
        ...


# ------------------------------------------------------------------------------------- model and metrics


class Backbone(Protocol):
    """What a `dml_backbones` factory returns: an `nn.Module` from images to feature maps or vectors.

    One that gives features of several depths has a tuple `num_features`, and returns a tuple of tensors.
    """

    num_features: int | tuple[int, ...]

    def __call__(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """(B, channels, height, width) to (B, num_features, h, w) or (B, num_features); of several levels, to each."""
        ...


class Evaluation(Protocol):
    """What an evaluator measured."""

    per_query: Mapping[str, npt.NDArray[np.float64]]

    def to_dict(self) -> dict[str, Any]:
        """The figures in JSON's types: ``{"recall": {"1": …}, "map_at_r": …, …}``."""
        ...


class Evaluator(Protocol):
    """What a `dml_evaluators` factory returns."""

    def evaluate(
        self,
        embeddings: npt.NDArray[Any],  # (Q, D)
        labels: npt.NDArray[Any],  # (Q,)
        gallery: npt.NDArray[Any] | None = None,  # (G, D)
        gallery_labels: npt.NDArray[Any] | None = None,  # (G,)
    ) -> Evaluation:
        """The retrieval (and, if asked for, clustering) metrics. With no gallery, each query leaves itself out."""
        ...

    def nearest(
        self, queries: npt.NDArray[Any], gallery: npt.NDArray[Any], k: int, *, exclude_self: bool = False
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Scores and indices, both (Q, k), of the k nearest gallery rows, nearest first."""
        ...

    def bytes_per_item(self, dim: int) -> int:
        """How many bytes one stored embedding of `dim` dimensions takes."""
        ...


class Peers(Protocol):
    """The processes that share a measurement, as one of them sees them."""

    @property
    def rank(self) -> int:
        """This one's place, from 0."""
        ...

    @property
    def world_size(self) -> int:
        """How many there are."""
        ...

    @property
    def threads(self) -> int:
        """How many threads this one may use, so that those of one machine share its cores."""
        ...

    def all_gather(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Everybody's (n,) numbers, one after the other in the order of the ranks; n differs from rank to rank."""
        ...

    def all_reduce(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sums over all ranks, entry by entry, of (n,) counts; n is the same everywhere."""
        ...


@runtime_checkable
class ShardedEvaluator(Protocol):
    """An `Evaluator` whose work several processes can share. The trainer asks any other on the first rank alone."""

    def evaluate_sharded(
        self,
        peers: Peers,
        embeddings: npt.NDArray[Any],  # (Q, D), whole and the same on every rank, as are the others
        labels: npt.NDArray[Any],  # (Q,)
        gallery: npt.NDArray[Any] | None = None,  # (G, D)
        gallery_labels: npt.NDArray[Any] | None = None,  # (G,)
    ) -> Evaluation:
        """What `evaluate` gives, to the bit, on every rank. All ranks call it at the same point."""
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
    """What a `dml_loggers` factory returns."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record these values at this step."""
        ...

    def close(self) -> None:
        """Write out what is held back. Called once, also when the run failed."""
        ...


# ---------------------------------------------------------------------------------- what a plugin is shown


@dataclass(frozen=True, slots=True)
class Run:
    """The run that an observer is shown.

    Args:
        directory: the run's folder.
        recipe: the recipe as resolved, every default filled in.
        num_steps: optimizer steps of the whole run.
        rank: this process's place among the ranks; 0 writes.
        world_size: how many ranks share the run.
    """

    directory: Path
    recipe: Mapping[str, Any]
    num_steps: int
    rank: int = 0
    world_size: int = 1

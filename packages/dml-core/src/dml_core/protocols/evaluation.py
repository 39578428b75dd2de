"""Protocols of backbones, evaluators, evaluations and loggers.

Shapes: `B` batch, `D` embedding dimension, `Q` queries, `G` gallery.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch


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

        Raises:
            KeyError: if a metric is missing.
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

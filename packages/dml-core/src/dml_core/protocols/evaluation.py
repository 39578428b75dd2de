"""Protocols of backbones, evaluators, evaluations and loggers.

Shapes: `B` batch, `D` embedding dimension, `Q` queries, `G` gallery.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from dml_eval_rs.matches.labels import Labels
    from dml_eval_rs.matches.relevance import Relevance
    from dml_eval_rs.peers import Peers


class Backbone(Protocol):
    """A network from images to feature maps or vectors: an `nn.Module`, made by a `dml_backbones`
    factory.

    If a backbone has features of multiple depths, `num_features` is a tuple, and the result is a
    tuple of tensors.
    """

    num_features: int | tuple[int, ...]

    def __call__(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Map (B, channels, height, width) to (B, num_features, h, w) or (B, num_features), per
        depth.
        """


@runtime_checkable
class LayeredBackbone(Protocol):
    """A `Backbone` with a list of layers, to train with layer-wise learning rates, or only the last
    layers.
    """

    def parameters_by_layer(self) -> Sequence[Sequence[torch.nn.Parameter]]:
        """List all parameters by layer, from the image to the features; each parameter must be in a
        single layer.
        """


class Evaluation(Protocol):
    """The metrics of an evaluation: a `Mapping` from names to values, for example
    ``evaluation["recall@1"]``.

    Recipes, logged values, files and reports use these names.
    """

    @property
    def per_query(self) -> Mapping[str, npt.NDArray[np.float64]]:
        """The values of metrics per query, (Q,), NaN if a query is not counted. A metric is the
        mean of the values.
        """

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics and other counts in JSON's types:
        ``{"recall@1": 0.8, …, "n_queries": 100}``.
        """

    def __getitem__(self, name: str, /) -> float:
        """Return the value of a metric."""

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""

    def __len__(self) -> int:
        """Return the number of metrics."""

    def __contains__(self, name: object, /) -> bool:
        """Tell whether a metric with this name was measured."""

    def keys(self) -> KeysView[str]:
        """Return the names."""

    def values(self) -> ValuesView[float]:
        """Return the values."""

    def items(self) -> ItemsView[str, float]:
        """Return names and values."""


class ConfidenceInterval(Protocol):
    """A confidence interval of a mean."""

    @property
    def low(self) -> float:
        """The lower bound."""

    @property
    def high(self) -> float:
        """The upper bound."""


class PairedComparison(Protocol):
    """A paired test between evaluations of the same queries."""

    @property
    def difference(self) -> float:
        """The mean of the first evaluation minus the mean of the second."""

    @property
    def p_value(self) -> float:
        """The two-sided p-value."""

    @property
    def interval(self) -> ConfidenceInterval:
        """The interval of the difference."""


@runtime_checkable
class IntervalEvaluation(Evaluation, Protocol):
    """An `Evaluation` with confidence intervals, which reports show."""

    def confidence_interval(self, name: str, level: float = 0.95) -> ConfidenceInterval:
        """Return the interval of the mean of ``per_query[name]``."""


@runtime_checkable
class ComparableEvaluation(Evaluation, Protocol):
    """An `Evaluation` with paired tests, which reports show."""

    def compare(self, other: Evaluation, name: str) -> PairedComparison:
        """Test the metric ``per_query[name]`` against `other`, which must evaluate the same queries
        in this order.
        """


class Evaluator(Protocol):
    """An object that measures retrieval, made by a `dml_evaluators` factory."""

    def evaluate(
        self,
        embeddings: npt.NDArray[Any],  # (Q, D)
        labels: npt.NDArray[Any],  # (Q,)
        gallery: npt.NDArray[Any] | None = None,  # (G, D)
        gallery_labels: npt.NDArray[Any] | None = None,  # (G,)
    ) -> Evaluation:
        """Measure retrieval (and clustering, if so configured). By default, queries search all
        other queries.
        """

    def nearest(
        self,
        queries: npt.NDArray[Any],
        gallery: npt.NDArray[Any],
        k: int,
        *,
        exclude_self: bool = False,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return scores and indices, both (Q, k), of the k nearest gallery rows, nearest first."""

    def bytes_per_item(self, dim: int) -> int:
        """Return the size of a stored embedding of `dim` dimensions."""


class MatchesEvaluator(Evaluator, Protocol):
    """An `Evaluator` for data sets that match items not only by label; see `takes_matches`.

    The methods can be given `Labels` with groups, junk, distractors or ignored items, and
    `Relevance`, instead of arrays of labels. If the evaluator is a `PeersEvaluator`, this includes
    `evaluate_with_peers`.
    """

    @property
    def takes_matches(self) -> bool:
        """True, to mark the evaluator."""

    def evaluate(
        self,
        embeddings: npt.NDArray[Any],  # (Q, D)
        labels: npt.NDArray[Any] | Labels | Relevance,  # (Q,), or lists of Q queries
        gallery: npt.NDArray[Any] | None = None,  # (G, D)
        gallery_labels: npt.NDArray[Any]
        | Labels
        | None = None,  # (G,); must be None with `Relevance`
    ) -> Evaluation:
        """Measure the metrics with these matches."""


def takes_matches(evaluator: Evaluator) -> TypeGuard[MatchesEvaluator]:
    """Tell whether an evaluator takes `Labels` and `Relevance`, that is, whether it is a
    `MatchesEvaluator`.
    """
    return getattr(evaluator, "takes_matches", False) is True


@runtime_checkable
class PeersEvaluator(Protocol):
    """An `Evaluator` that processes can use together. The trainer will run other evaluators only on
    rank 0.
    """

    def evaluate_with_peers(
        self,
        peers: Peers,
        embeddings: npt.NDArray[Any],  # (Q, D); all arrays must be complete, and equal on all ranks
        labels: npt.NDArray[Any],  # (Q,)
        gallery: npt.NDArray[Any] | None = None,  # (G, D)
        gallery_labels: npt.NDArray[Any] | None = None,  # (G,)
    ) -> Evaluation:
        """Return the result of `evaluate`, bit for bit, on all ranks. All ranks must call it in the
        same order.
        """


@runtime_checkable
class RestoringEvaluator(Protocol):
    """An `Evaluator` that rebuilds an evaluation from saved values, so that reports need not
    evaluate again.
    """

    def restore(
        self, metrics: Mapping[str, Any], per_query: Mapping[str, npt.NDArray[np.float64]]
    ) -> Evaluation:
        """Rebuild an evaluation.

        Args:
            metrics: contains the values of `Evaluation.to_dict`, as read from JSON; other keys are
                ignored.
            per_query: the values of `Evaluation.per_query`.

        Raises:
            KeyError: if a metric is missing.
        """


@runtime_checkable
class RangeEvaluator(Evaluator, Protocol):
    """An `Evaluator` that can find all items above a similarity, for example near-copies."""

    def within(
        self,
        queries: npt.NDArray[Any],
        gallery: npt.NDArray[Any],
        threshold: float,
        *,
        max_results: int,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Find, for each query, all gallery items with a similarity of at least `threshold`.

        Returns:
            Offsets (Q + 1,), indices (M,) and similarities (M,): query q finds
            ``indices[offsets[q]:offsets[q + 1]]``, nearest first.

        Raises:
            ValueError: if there are more than `max_results` results.
        """


@runtime_checkable
class RerankingEvaluator(Evaluator, Protocol):
    """An `Evaluator` that can use neighbours of neighbours to improve results."""

    def evaluate_reranked(
        self,
        embeddings: npt.NDArray[Any],  # (Q, D)
        labels: npt.NDArray[Any],  # (Q,)
        gallery: npt.NDArray[Any] | None = None,  # (G, D)
        gallery_labels: npt.NDArray[Any] | None = None,  # (G,)
        **reranking: Any,
    ) -> Evaluation:
        """Re-rank the results, and measure the metrics of rankings like `evaluate`; omit other
        metrics.
        """

    def expand(
        self,
        queries: npt.NDArray[Any],  # (Q, D)
        gallery: npt.NDArray[Any] | None = None,  # (G, D); default: the other queries
        **expansion: Any,
    ) -> npt.NDArray[np.float32]:
        """Replace queries by means with the nearest items, (Q, D)."""


@runtime_checkable
class MiningEvaluator(Evaluator, Protocol):
    """An `Evaluator` that can find hard negatives; see `MiningSampler`."""

    def hard_negatives(
        self,
        embeddings: npt.NDArray[Any],  # (N, D)
        labels: npt.NDArray[Any],  # (N,)
        k: int,
        *,
        below: Literal["hardest", "easiest"] | None = None,
        margin: float = 0.0,
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Find, for each item, the k nearest items of other classes.

        If `below` is given, the negatives' similarity must be below the similarity of the item's
        hardest (least similar) or easiest positive, minus `margin`.

        Returns:
            Similarities and indices, both (N, k), nearest first; padded with NaN and -1 if there
            are fewer negatives.
        """


@runtime_checkable
class VerifyingEvaluator(Evaluator, Protocol):
    """An `Evaluator` that measures verification, to show the curve in reports."""

    def true_accept_rates(
        self,
        far: Sequence[float],
        embeddings: npt.NDArray[Any],  # (Q, D)
        labels: npt.NDArray[Any],  # (Q,)
        gallery: npt.NDArray[Any] | None = None,  # (G, D)
        gallery_labels: npt.NDArray[Any] | None = None,  # (G,)
    ) -> Mapping[float, float]:
        """Measure the largest share of positive pairs that a threshold can accept, given a limit on
        accepted negatives.

        By default, unordered pairs of queries are compared once. A `MatchesEvaluator` also takes
        `Labels`, and then excludes pairs with equal labels and groups.

        Args:
            far: the largest shares of negative pairs to accept, above 0 and below 1.

        Raises:
            ValueError: if there are no positive or no negative pairs.
        """


class RunLogger(Protocol):
    """A logger of a run's values, made by a `dml_loggers` factory."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record these values for the given step."""

    def close(self) -> None:
        """Flush buffered values. Called once, even if the run failed."""

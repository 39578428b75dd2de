"""The evaluators `exact` and `hamming` of recipes, for `dml_eval_rs.plugin`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs import arguments, range_search
from dml_eval_rs.clustering import Average, cluster_agreement
from dml_eval_rs.evaluation import Evaluation
from dml_eval_rs.mining import Below, hard_negatives
from dml_eval_rs.relation import GradedLists, Lists
from dml_eval_rs.retrieval import Similarity, Ties, Unmatched, binarize, evaluate, evaluate_codes
from dml_eval_rs.search import knn, knn_codes
from dml_eval_rs.verification import verify, verify_codes

if TYPE_CHECKING:
    from dml_core import Peers

_METRIC_OPTIONS = (
    *(
        "recall_at",
        "precision_at",
        "average_precision_at",
        "ndcg_at",
        "recall_share_at",
        "reciprocal_rank_at",
    ),
    *("average_precision", "unmatched", "ties"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluator(ABC):
    """What both evaluators have: the options of metrics and of clusters."""

    recall_at: Sequence[int] = (1, 10, 100, 1000)
    precision_at: Sequence[int] = ()
    average_precision_at: Sequence[int] = ()
    ndcg_at: Sequence[int] = ()
    recall_share_at: Sequence[int] = ()
    reciprocal_rank_at: Sequence[int] = ()
    average_precision: bool = False
    unmatched: Unmatched = "skip"
    ties: Ties = "index"
    nmi: bool = False
    nmi_average: Average = "arithmetic"
    n_clusters: int | None = None
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        """Refuse wrong options now, not after a training."""
        _measure_two_items(self)

    def evaluate(
        self,
        embeddings: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        gallery: npt.NDArray[Any] | None = None,
        gallery_labels: npt.NDArray[Any] | None = None,
        *,
        groups: npt.NDArray[Any] | None = None,
        gallery_groups: npt.NDArray[Any] | None = None,
        relevant: Lists | GradedLists | None = None,
        ignored: Lists | None = None,
    ) -> Evaluation:
        """Measure the metrics; without a gallery, each query leaves itself out. `relevant` replaces the labels."""
        return self.evaluate_sharded(
            None,
            embeddings,
            labels,
            gallery,
            gallery_labels,
            groups=groups,
            gallery_groups=gallery_groups,
            relevant=relevant,
            ignored=ignored,
        )

    @abstractmethod
    def evaluate_sharded(
        self,
        peers: Peers | None,
        embeddings: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        gallery: npt.NDArray[Any] | None = None,
        gallery_labels: npt.NDArray[Any] | None = None,
        *,
        groups: npt.NDArray[Any] | None = None,
        gallery_groups: npt.NDArray[Any] | None = None,
        relevant: Lists | GradedLists | None = None,
        ignored: Lists | None = None,
    ) -> Evaluation:
        """Measure the same, with the work divided among the peers, if any."""

    def restore(
        self, metrics: Mapping[str, Any], per_query: Mapping[str, npt.NDArray[np.float64]]
    ) -> Evaluation:
        """Rebuild an evaluation from its metrics and per-query values, see `Evaluation.from_dict`."""
        return Evaluation.from_dict(metrics, per_query)

    def _metrics(self) -> dict[str, Any]:
        """Return the options that say what is measured, but not of clusters."""
        return {name: getattr(self, name) for name in _METRIC_OPTIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactEvaluator(_Evaluator):
    """Evaluator of the embeddings themselves: `dml_eval_rs.evaluate` documents its options."""

    similarity: Similarity = "cosine"

    def evaluate_sharded(
        self,
        peers: Peers | None,
        embeddings: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        gallery: npt.NDArray[Any] | None = None,
        gallery_labels: npt.NDArray[Any] | None = None,
        *,
        groups: npt.NDArray[Any] | None = None,
        gallery_groups: npt.NDArray[Any] | None = None,
        relevant: Lists | GradedLists | None = None,
        ignored: Lists | None = None,
    ) -> Evaluation:
        """Measure the same, with the work divided among the peers, if any."""
        return evaluate(
            embeddings,
            labels if relevant is None else None,
            gallery,
            gallery_labels if relevant is None else None,
            groups=groups,
            gallery_groups=gallery_groups,
            relevant=relevant,
            ignored=ignored,
            similarity=self.similarity,
            **self._metrics(),
            nmi=self.nmi,
            nmi_average=self.nmi_average,
            n_clusters=self.n_clusters,
            seed=self.seed,
            threads=_threads(self.threads, peers),
            peers=peers,
        )

    def nearest(
        self, queries: npt.NDArray[Any], gallery: npt.NDArray[Any], k: int, *, exclude_self: bool = False
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return similarities, descending, and indices of the k nearest gallery rows, both (Q, k)."""
        return knn(
            queries, gallery, k, similarity=self.similarity, exclude_self=exclude_self, threads=self.threads
        )

    def within(
        self, queries: npt.NDArray[Any], gallery: npt.NDArray[Any], threshold: float, *, max_results: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Find all gallery rows with at least this similarity to each query, see `dml_eval_rs.range_search`."""
        return range_search(
            queries,
            gallery,
            threshold,
            similarity=self.similarity,
            max_results=max_results,
            threads=self.threads,
        )

    def hard_negatives(
        self,
        embeddings: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        k: int,
        *,
        below: Below | None = None,
        margin: float = 0.0,
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Find each item's nearest items of other classes, see `dml_eval_rs.hard_negatives`."""
        return hard_negatives(
            embeddings,
            labels,
            k,
            below=below,
            margin=margin,
            similarity=self.similarity,
            threads=self.threads,
        )

    def true_accept_rates(
        self,
        far: Sequence[float],
        embeddings: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        gallery: npt.NDArray[Any] | None = None,
        gallery_labels: npt.NDArray[Any] | None = None,
        *,
        groups: npt.NDArray[Any] | None = None,
        gallery_groups: npt.NDArray[Any] | None = None,
    ) -> Mapping[float, float]:
        """Measure TAR at each FAR, see `dml_eval_rs.verify`."""
        return verify(
            embeddings,
            labels,
            gallery,
            gallery_labels,
            groups=groups,
            gallery_groups=gallery_groups,
            far=far,
            metrics=("tar",),
            similarity=self.similarity,
            threads=self.threads,
        ).tar

    def bytes_per_item(self, dim: int) -> int:
        """Return the bytes of one float32 embedding."""
        return 4 * dim


@dataclass(frozen=True, slots=True, kw_only=True)
class HammingEvaluator(_Evaluator):
    """Evaluator of the embeddings as binary codes, one bit per dimension, set above `threshold`.

    With `nmi`, the bits are clustered as vectors of 0 and 1, whose squared distance is the Hamming distance.
    """

    threshold: float = 0.0

    def evaluate_sharded(
        self,
        peers: Peers | None,
        embeddings: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        gallery: npt.NDArray[Any] | None = None,
        gallery_labels: npt.NDArray[Any] | None = None,
        *,
        groups: npt.NDArray[Any] | None = None,
        gallery_groups: npt.NDArray[Any] | None = None,
        relevant: Lists | GradedLists | None = None,
        ignored: Lists | None = None,
    ) -> Evaluation:
        """Measure the same, with the work divided among the peers, if any."""
        codes = binarize(embeddings, self.threshold)
        gallery_codes = None if gallery is None else binarize(gallery, self.threshold)
        threads = _threads(self.threads, peers)
        result = evaluate_codes(
            codes,
            labels if relevant is None else None,
            gallery_codes,
            gallery_labels if relevant is None else None,
            groups=groups,
            gallery_groups=gallery_groups,
            relevant=relevant,
            ignored=ignored,
            **self._metrics(),
            threads=threads,
            peers=peers,
        )
        if not self.nmi:
            return result
        parts = [(codes, arguments.partition(labels, "labels"))]
        if gallery_codes is not None and gallery_labels is not None:
            parts.append((gallery_codes, arguments.partition(gallery_labels, "gallery_labels")))
        agreement = cluster_agreement(
            parts,
            bits=embeddings.shape[1],
            average=self.nmi_average,
            n_clusters=self.n_clusters,
            seed=self.seed,
            threads=threads,
            peers=peers,
        )
        return replace(result, nmi=agreement.nmi, ami=agreement.ami, ari=agreement.ari)

    def nearest(
        self, queries: npt.NDArray[Any], gallery: npt.NDArray[Any], k: int, *, exclude_self: bool = False
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Return distances, ascending, and indices of the k nearest gallery codes, both (Q, k)."""
        return knn_codes(
            binarize(queries, self.threshold),
            binarize(gallery, self.threshold),
            k,
            exclude_self=exclude_self,
            threads=self.threads,
        )

    def true_accept_rates(
        self,
        far: Sequence[float],
        embeddings: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        gallery: npt.NDArray[Any] | None = None,
        gallery_labels: npt.NDArray[Any] | None = None,
        *,
        groups: npt.NDArray[Any] | None = None,
        gallery_groups: npt.NDArray[Any] | None = None,
    ) -> Mapping[float, float]:
        """Measure TAR at each FAR, see `dml_eval_rs.verify_codes`."""
        return verify_codes(
            binarize(embeddings, self.threshold),
            labels,
            None if gallery is None else binarize(gallery, self.threshold),
            gallery_labels,
            groups=groups,
            gallery_groups=gallery_groups,
            far=far,
            metrics=("tar",),
            threads=self.threads,
        ).tar

    def bytes_per_item(self, dim: int) -> int:
        """Return the bytes of one code, at one bit per dimension."""
        return -(-dim // 8)


def _measure_two_items(evaluator: _Evaluator) -> None:
    """Measure two items, which refuses any option that an evaluation would refuse.

    Raises:
        TypeError, ValueError: as `dml_eval_rs.evaluate`.
    """
    if evaluator.n_clusters is None:
        evaluator.evaluate(np.eye(2, dtype=np.float32), np.zeros(2, dtype=np.int64))
        return
    arguments.positive(evaluator.n_clusters, "n_clusters")
    if not evaluator.nmi:
        raise ValueError(
            f"n_clusters is {evaluator.n_clusters} but nmi is False; expected nmi=True, or no n_clusters"
        )
    replace(evaluator, n_clusters=None)  # is made only to check the other options


def _threads(threads: int | None, peers: Peers | None) -> int | None:
    return peers.threads if threads is None and peers is not None else threads

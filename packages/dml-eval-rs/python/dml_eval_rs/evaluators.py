"""The evaluator for recipes, registered by `dml_eval_rs.plugin` as `exact` for embeddings and
`hamming` for codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Unpack

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import COSINE, Similarity, Ties, Unmatched
from dml_eval_rs.matches.relevance import Relevance
from dml_eval_rs.metrics.evaluation import Evaluation
from dml_eval_rs.metrics.names import DEFAULT, METRICS, Kind, check_metrics, family_of
from dml_eval_rs.peers import Peers
from dml_eval_rs.reranking import evaluate_reranked, expand_queries
from dml_eval_rs.retrieval import (
    CheckedOptions,
    LabelsLike,
    Matches,
    Options,
    check_options,
    measure,
)
from dml_eval_rs.search import Below, binarize, hard_negatives, knn, range_search
from dml_eval_rs.verification.verify import verify

Rows = npt.NDArray[Any]
_KINDS: tuple[Kind, ...] = ("retrieval", "clustering", "verification")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Evaluator for embeddings or codes; for options see `dml_eval_rs.evaluate`.

    If ``similarity="hamming"``, embeddings are first binarized to a bit per dimension, set if it
    exceeds `threshold`. Clustering metrics then use bits as the numbers 0 and 1, so squared
    distances are Hamming distances.

    Args:
        metrics: names for `evaluate`, and ``"tar@far=X"`` for `verify`.
        threshold: a bit is set if a number exceeds this (default: 0); only used if
            ``similarity="hamming"``.
    """

    metrics: Sequence[str] = DEFAULT
    similarity: Similarity = COSINE
    ties: Ties = "index"
    unmatched: Unmatched = "skip"
    n_clusters: int | None = None
    seed: int = 0
    threshold: float = 0.0
    threads: int | None = None
    takes_matches: ClassVar[bool] = True  # see `dml_core.MatchesEvaluator`

    def __post_init__(self) -> None:
        """Check the options now, not after training."""
        if self.threshold and self.similarity != "hamming":
            came = f"threshold is {self.threshold} with similarity={self.similarity!r}"
            raise ValueError(f"{came}; expected similarity='hamming'")
        binarize(np.zeros((1, 1), np.float32), self.threshold)
        _split(self._options())
        if self.n_clusters is not None:
            arguments.positive(self.n_clusters, "n_clusters")

    def evaluate(
        self,
        embeddings: Rows,
        labels: Matches,
        gallery: Rows | None = None,
        gallery_labels: LabelsLike | None = None,
    ) -> Evaluation:
        """Measure the metrics. If a gallery is not given, queries exclude themselves."""
        return self.evaluate_with_peers(None, embeddings, labels, gallery, gallery_labels)

    def evaluate_with_peers(
        self,
        peers: Peers | None,
        embeddings: Rows,
        labels: Matches,
        gallery: Rows | None = None,
        gallery_labels: LabelsLike | None = None,
    ) -> Evaluation:
        """Measure the metrics like `evaluate`, and divide the work between the peers, if any."""
        sides = self._rows(embeddings), labels, self._rows(gallery), gallery_labels
        return measure_all(*sides, bits=embeddings.shape[1], **self._options(peers))

    def evaluate_reranked(
        self,
        embeddings: Rows,
        labels: Matches,
        gallery: Rows | None = None,
        gallery_labels: LabelsLike | None = None,
        **reranking: Any,
    ) -> Evaluation:
        """Measure the retrieval metrics of re-ranked results, see `dml_eval_rs.rerank` for `k1`,
        `k2` and `weight`.
        """
        names = check_metrics(self.metrics, _KINDS)
        of_results = [
            name for name in names if METRICS[str(family_of(name))].kind == "retrieval"
        ] or DEFAULT
        options = check_options(**{**self._options(), "metrics": of_results, "n_clusters": None})
        return evaluate_reranked(embeddings, labels, gallery, gallery_labels, options, **reranking)

    def expand(
        self, queries: Rows, gallery: Rows | None = None, **expansion: Any
    ) -> npt.NDArray[np.float32]:
        """Replace queries by means with their neighbours, see `dml_eval_rs.expand_queries`."""
        return expand_queries(queries, gallery, threads=self.threads, **expansion)

    restore = staticmethod(Evaluation.from_dict)

    def nearest(
        self, queries: Rows, gallery: Rows, k: int, *, exclude_self: bool = False
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return the similarities or distances, and the indices, of the k nearest rows, both (Q,
        k), nearest first.
        """
        return knn(
            self._rows(queries), self._rows(gallery), k, exclude_self=exclude_self, **self._space
        )

    def within(
        self, queries: Rows, gallery: Rows, threshold: float, *, max_results: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Find all gallery rows with a similarity that reaches the threshold, see
        `dml_eval_rs.range_search`.
        """
        sides = self._rows(queries), self._rows(gallery)
        return range_search(*sides, threshold, max_results=max_results, **self._space)

    def hard_negatives(
        self,
        embeddings: Rows,
        labels: npt.ArrayLike,
        k: int,
        *,
        below: Below | None = None,
        margin: float = 0.0,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Find the nearest items with different labels, see `dml_eval_rs.hard_negatives`."""
        return hard_negatives(
            self._rows(embeddings), labels, k, below=below, margin=margin, **self._space
        )

    def true_accept_rates(
        self,
        far: Sequence[float],
        embeddings: Rows,
        labels: LabelsLike,
        gallery: Rows | None = None,
        gallery_labels: LabelsLike | None = None,
    ) -> Mapping[float, float]:
        """Measure TAR per FAR, see `dml_eval_rs.verify`."""
        names = {f"tar@far={float(share)!r}": share for share in far}
        sides = self._rows(embeddings), labels, self._rows(gallery), gallery_labels
        rates = verify(*sides, metrics=list(names), **self._space)
        return {share: rates[name] for name, share in names.items()}

    def bytes_per_item(self, dim: int) -> int:
        """Return the bytes per float32 embedding, or per code."""
        return -(-dim // 8) if self.similarity == "hamming" else 4 * dim

    def _rows(self, embeddings: Any) -> Any:
        if embeddings is None or self.similarity != "hamming":
            return embeddings
        return binarize(embeddings, self.threshold)

    @property
    def _space(self) -> dict[str, Any]:
        return {"similarity": self.similarity, "threads": self.threads}

    def _options(self, peers: Peers | None = None) -> Any:
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        del options["threshold"]
        return {**options, "peers": peers}


@dataclass(frozen=True, slots=True, kw_only=True)
class HammingEvaluator(Evaluator):
    """Evaluator for codes."""

    similarity: Similarity = field(default="hamming", init=False)


def measure_all(
    embeddings: npt.ArrayLike,
    labels: Matches,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: LabelsLike | None = None,
    *,
    bits: int | None = None,
    **options: Unpack[Options],
) -> Evaluation:
    """Use `verify` to measure pair metrics, such as ``"tar@far=1e-3"``, and `evaluate` to measure
    other metrics.
    """
    pair_metrics, checked = _split(options)
    (found,) = measure(embeddings, labels, gallery, gallery_labels, checked, bits)
    if not pair_metrics:
        return found
    if isinstance(labels, Relevance):
        raise ValueError(
            f"{pair_metrics[0]} needs labels, but labels is a Relevance; use other metrics"
        )
    space: Any = {
        "similarity": checked.similarity,
        "threads": checked.threads,
        "peers": checked.peers,
    }
    rates = verify(embeddings, labels, gallery, gallery_labels, metrics=pair_metrics, **space)
    names = check_metrics(options["metrics"], _KINDS)
    values = {name: (rates if name in rates else found)[name] for name in names}
    per_query = {name: values for name, values in found.per_query.items() if name in names}
    return replace(found, _values=values, per_query=per_query)


def _split(options: Options) -> tuple[list[str], CheckedOptions]:
    """Check options; return the pair metrics, and the options for other metrics."""
    names = check_metrics(options.get("metrics", DEFAULT), _KINDS)
    pair_metrics = [name for name in names if METRICS[str(family_of(name))].kind == "verification"]
    others = [name for name in names if name not in pair_metrics]
    others_only: Options = {**options, "metrics": others or DEFAULT[:1]}
    return pair_metrics, check_options(**others_only)

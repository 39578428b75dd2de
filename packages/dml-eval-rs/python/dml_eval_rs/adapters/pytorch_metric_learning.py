"""A replacement of pytorch-metric-learning's `AccuracyCalculator`, with the same arguments, results and meaning.

Shapes: `Q` queries, `G` reference, `D` dim, `R` matches of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dml_eval_rs import arguments
from dml_eval_rs.clustering import ami, kmeans, nmi
from dml_eval_rs.evaluation import Evaluation
from dml_eval_rs.retrieval import Similarity, evaluate

_CLUSTERING = ("AMI", "NMI")
_RETRIEVAL = (
    "mean_average_precision",
    "mean_average_precision_at_r",
    "mean_reciprocal_rank",
    "precision_at_1",
    "r_precision",
)
_METRICS = (*_CLUSTERING, *_RETRIEVAL)


class AccuracyCalculator:
    """A calculator of pytorch-metric-learning's metrics by exact counts, in memory that doesn't grow with Q × G.

    Args:
        include: names of the metrics to calculate; empty for all.
        exclude: names to omit.
        avg_of_avgs: whether to average over the classes' averages.
        return_per_class: whether to return a list of the classes' averages, by ascending label.
        k: the number of neighbours that count; None for the whole reference, ``"max_bin_count"`` for the largest R.
        label_comparison_fn: called with tensors of a query's label (1, ...) and of the reference labels (G, ...);
            returns (G,) whether they match. Needs torch, and excludes NMI and AMI.
        device: ignored; the work is done on the CPU.
        knn_func: must be None; `similarity` chooses the order.
        kmeans_func: called with the queries and a number of clusters, returns (Q,) clusters; None for `kmeans`.
        similarity: ``"euclidean"``, as there by default, ``"cosine"`` or ``"dot"``.

    Raises:
        TypeError: if `include` or `exclude` is no tuple or list, or `knn_func` is given.
        ValueError: for unknown names, or arguments that exclude each other.
    """

    def __init__(
        self,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        avg_of_avgs: bool = False,
        return_per_class: bool = False,
        k: int | Literal["max_bin_count"] | None = None,
        label_comparison_fn: Callable[[Any, Any], Any] | None = None,
        device: object = None,
        knn_func: None = None,
        kmeans_func: Callable[[Any, int], Any] | None = None,
        *,
        similarity: Similarity = "euclidean",
    ) -> None:
        if knn_func is not None:
            raise TypeError(
                f"knn_func is a {type(knn_func).__name__}; expected None, since ranks are counted without neighbours: "
                'use similarity="cosine" or "dot" for another order'
            )
        if avg_of_avgs and return_per_class:
            raise ValueError("avg_of_avgs came with return_per_class; expected one of them")
        if k is not None and k != "max_bin_count":
            k = arguments.positive(k, "k")
        self._names = _choose(_METRICS, include, exclude)
        if label_comparison_fn is not None and set(self._names) & set(_CLUSTERING):
            raise ValueError(
                'label_comparison_fn came with NMI or AMI, which compare partitions; expected exclude=("NMI", "AMI")'
            )
        self._current = self._names
        self._by_class = avg_of_avgs or return_per_class
        self._return_per_class = return_per_class
        self._avg_of_avgs = avg_of_avgs
        self._k: int | Literal["max_bin_count"] | None = k
        self._compare = label_comparison_fn
        self._kmeans = kmeans_func
        self._similarity: Similarity = similarity

    def get_accuracy(
        self,
        query: npt.ArrayLike,
        query_labels: npt.ArrayLike,
        reference: npt.ArrayLike | None = None,
        reference_labels: npt.ArrayLike | None = None,
        ref_includes_query: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Calculate the metrics of queries whose label is in the reference; the others don't count.

        Args:
            query: (Q, D) floats, as `evaluate` takes them.
            query_labels: (Q,) integers, booleans or strings; any tensor of Q entries with `label_comparison_fn`.
            reference: (G, D); None for the queries.
            reference_labels: (G,).
            ref_includes_query: whether the first Q items of the reference are the queries, each left out for itself.
            include: names of those chosen at construction; empty for all of them.
            exclude: names to omit.

        Returns:
            Name → value, or list of values by class; NaN if no query's label is in the reference.

        Raises:
            TypeError: if an array has the wrong kind of dtype.
            ValueError: if shapes don't match, or the first Q items of the reference aren't the queries.
        """
        self._current = _choose(self._names, include, exclude)
        found: dict[str, Any] = {}
        if set(self._current) & set(_CLUSTERING):
            labels_Q = arguments.partition(query_labels, "query_labels")
            n_clusters = len(np.unique(labels_Q))
            clusters = (
                kmeans(query, n_clusters).labels if self._kmeans is None else self._kmeans(query, n_clusters)
            )
            measures = {"AMI": ami, "NMI": nmi}
            found = {
                name: measures[name](labels_Q, clusters) for name in _CLUSTERING if name in self._current
            }
        names = [name for name in _RETRIEVAL if name in self._current]
        if names:
            found |= self._retrieve(
                names, query, query_labels, reference, reference_labels, bool(ref_includes_query)
            )
        return found

    def get_curr_metrics(self) -> list[str]:
        """Return the names of the metrics of the last call, before the first those of the constructor."""
        return list(self._current)

    def requires_clustering(self) -> list[str]:
        """Return the names of the metrics that cluster the queries."""
        return ["NMI", "AMI"]

    def requires_knn(self) -> list[str]:
        """Return the names of the metrics of ranks."""
        return list(_RETRIEVAL)

    def description(self) -> str:
        """Return the word that testers put into their records' names."""
        return "avg_of_avgs" if self._avg_of_avgs else ""

    def _retrieve(
        self,
        names: list[str],
        query: npt.ArrayLike,
        query_labels: Any,
        reference: npt.ArrayLike | None,
        reference_labels: Any,
        includes: bool,
    ) -> dict[str, Any]:
        query_QD = arguments.embeddings(query, "query", "queries")
        gallery_GD = None if reference is None else arguments.embeddings(reference, "reference", "items")
        gallery_labels = None if reference is None else reference_labels
        own = gallery_GD is None or (includes and len(gallery_GD) == len(query_QD))
        if includes and gallery_GD is not None:
            _check_included(query_QD, gallery_GD)
        if own:
            gallery_GD = gallery_labels = None
        options: dict[str, Any] = {
            "similarity": self._similarity,
            "gallery": gallery_GD,
            "recall_at": (),
            "unmatched": "zero",
            "indices": np.arange(len(query_QD)) if includes and not own else None,
        }
        if self._compare is None:
            code_Q, size_Q = _count_labels(query_QD, query_labels, gallery_GD, gallery_labels)
            options |= {"labels": query_labels, "gallery_labels": gallery_labels}
        else:
            code_Q, size_Q, options["relevant"] = _compare_labels(
                self._compare, query_labels, query_labels if own else reference_labels
            )
        R_Q = size_Q - (own or includes)
        n_ranked = len(query_QD if gallery_GD is None else gallery_GD) - (own or includes)
        k = n_ranked if self._k is None else self._k
        if k == "max_bin_count":
            k = int(size_Q.max()) - (own or includes)
        matched_Q = R_Q > 0
        if not matched_Q.any():
            nan = float("nan")
            n_classes = len(np.unique(code_Q))
            return {name: [nan] * n_classes if self._return_per_class else nan for name in names}
        whole = k >= n_ranked
        if not whole:
            options |= {"precision_at": k, "average_precision_at": k}
        found = evaluate(query_QD, **options, average_precision=whole and "mean_average_precision" in names)
        return {
            name: self._average(_values(name, found, R_Q, k, whole)[matched_Q], code_Q[matched_Q])
            for name in names
        }

    def _average(self, values: npt.NDArray[np.float64], codes: npt.NDArray[Any]) -> float | list[float]:
        if not self._by_class:
            return float(values.mean())
        _, class_of = np.unique(codes, return_inverse=True)
        means = np.bincount(class_of, weights=values) / np.bincount(class_of)
        return means.tolist() if self._return_per_class else float(means.mean())


def _choose(names: Sequence[str], include: Any, exclude: Any) -> list[str]:
    for given, argument in ((include, "include"), (exclude, "exclude")):
        if not isinstance(given, (tuple, list)):
            raise TypeError(f"{argument} is a {type(given).__name__}; expected a tuple or list of names")
        for name in given:
            arguments.one_of(name, f"each of {argument}", _METRICS)
    chosen = include if include else names
    return [name for name in names if name in chosen and name not in exclude]


def _check_included(query_QD: npt.NDArray[Any], gallery_GD: npt.NDArray[Any]) -> None:
    arguments.same_width(gallery_GD, "reference", query_QD, "query")
    if len(gallery_GD) < len(query_QD):
        raise ValueError(
            f"ref_includes_query came with {len(query_QD)} queries and {len(gallery_GD)} reference items; expected the "
            "queries to be the first reference items"
        )
    for start in range(0, len(query_QD), 4096):
        queries = query_QD[start : start + 4096]
        same = np.isclose(queries, gallery_GD[start : start + len(queries)], rtol=1e-5, atol=1e-8).all(axis=1)
        if not same.all():
            raise ValueError(
                f"ref_includes_query came with reference item {start + int(np.argmin(same))} that isn't its query; "
                "expected the queries to be the first reference items"
            )


def _count_labels(
    query_QD: npt.NDArray[Any], labels: object, gallery_GD: npt.NDArray[Any] | None, gallery_labels: object
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return each query's label as a code, ascending with the labels, and the number of items with it."""
    labels_Q = arguments.labels(labels, "query_labels", query_QD, "query")
    if gallery_GD is None:
        (code_Q,) = arguments.encode(labels_Q)
        return code_Q, np.bincount(code_Q)[code_Q]
    labels_G = arguments.labels(gallery_labels, "reference_labels", gallery_GD, "reference")
    code_Q, code_G = arguments.encode(labels_Q, labels_G)
    counts = np.bincount(code_G, minlength=int(code_Q.max()) + 1)
    return code_Q, counts[code_Q]


def _compare_labels(
    compare: Callable[[Any, Any], Any], query_labels: Any, reference_labels: Any
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Return each query's distinct label as a code, the number of items that match it, and their lists."""
    import torch

    labels_Q, labels_G = torch.as_tensor(query_labels).cpu(), torch.as_tensor(reference_labels).cpu()
    distinct, code_Q = torch.unique(labels_Q, dim=0, return_inverse=True)
    items = []
    for i in range(len(distinct)):
        matches = torch.as_tensor(compare(distinct[i : i + 1], labels_G))
        if matches.shape != (len(labels_G),):
            raise ValueError(
                f"label_comparison_fn returned shape {tuple(matches.shape)} for one label and {len(labels_G)} of the "
                f"reference; expected ({len(labels_G)},), whether each matches"
            )
        items.append(np.flatnonzero(matches.numpy()))
    codes = code_Q.numpy()
    sizes = np.array([len(found) for found in items])[codes]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return codes, sizes, (offsets, np.concatenate([items[code] for code in codes]))


def _values(
    name: str, found: Evaluation, R_Q: npt.NDArray[np.int64], k: int, whole: bool
) -> npt.NDArray[np.float64]:
    """Return a metric of every query, as it is by the k nearest neighbours."""
    of = found.per_query
    if name == "precision_at_1":
        return of["precision_at_1"]
    if name == "mean_reciprocal_rank":
        reciprocal_Q = of["reciprocal_rank"]
        return np.where(reciprocal_Q >= 1 / k, reciprocal_Q, 0.0)
    if whole:
        names = {"mean_average_precision": "average_precision", "mean_average_precision_at_r": "map_at_r"}
        return of[names.get(name, name)]
    if name == "r_precision":
        return np.where(k >= R_Q, of["r_precision"], of[f"precision@{k}"])
    # There, the sum over the k nearest is divided by R, here by min(k, R).
    divided_by_R = of[f"average_precision@{k}"] * (np.minimum(k, R_Q) / np.maximum(R_Q, 1))
    if name == "mean_average_precision":
        return divided_by_R
    return np.where(k >= R_Q, of["map_at_r"], divided_by_R)

"""A replacement for pytorch-metric-learning's `AccuracyCalculator`, with identical arguments,
results and meaning.

Shapes: `Q` queries, `G` reference, `D` dim, `R` matches per query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dml_eval_rs.clustering import ami, kmeans, nmi
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Similarity
from dml_eval_rs.matches.relevance import Relevance
from dml_eval_rs.retrieval import Options, evaluate

_CLUSTERING = {"AMI": ami, "NMI": nmi}
_RETRIEVAL = {
    "mean_average_precision": "map",
    "mean_average_precision_at_r": "map@r",
    "mean_reciprocal_rank": "mrr",
    "precision_at_1": "precision@1",
    "r_precision": "r_precision",
}
_METRICS = (*_CLUSTERING, *_RETRIEVAL)


class AccuracyCalculator:
    """A calculator for pytorch-metric-learning's metrics that counts exactly; memory does not grow
    with Q × G.

    Args:
        include, exclude: names of the metrics to calculate (by default all), and names to omit.
        avg_of_avgs: whether to average per class, and return the average of these averages.
        return_per_class: whether to return a list with an average per class, sorted by label.
        k: the number of neighbours to use. By default, all of the reference; ``"max_bin_count"``
            for the largest R.
        label_comparison_fn: called with tensors of a query's label (1, ...) and reference labels
            (G, ...). It should return (G,) booleans: whether labels match. Needs torch; can't be
            used with NMI and AMI.
        device: ignored; metrics are calculated on the CPU.
        knn_func: must be None; use `similarity` to choose the order.
        kmeans_func: called with the queries and a number of clusters. Should return (Q,) clusters;
            by default `kmeans`.
        similarity: ``"euclidean"``, the default in pytorch-metric-learning, ``"cosine"`` or
            ``"dot"``.

    Raises:
        TypeError: if `include` or `exclude` is not a tuple or list, or `knn_func` is given.
        ValueError: if a name is unknown, or arguments can't be used together.
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
                f"knn_func is a {type(knn_func).__name__}; expected None, because ranks are "
                "computed without "
                'a search: to change the order of items, use similarity="cosine" or "dot"'
            )
        if avg_of_avgs and return_per_class:
            raise ValueError("avg_of_avgs and return_per_class are both given; expected only one")
        self._current = self._names = _choose(_METRICS, include, exclude)
        if label_comparison_fn is not None and _CLUSTERING.keys() & self._names:
            raise ValueError(
                "NMI and AMI can't use label_comparison_fn; expected exclude=('NMI', 'AMI')"
            )
        self._avg_of_avgs, self._return_per_class = avg_of_avgs, return_per_class
        self._k = k if k is None or k == "max_bin_count" else arguments.positive(k, "k")
        self._compare = label_comparison_fn
        self._kmeans = kmeans_func or (lambda query, n_clusters: kmeans(query, n_clusters).labels)
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
        """Calculate the metrics, using only queries that have a match in the reference.

        Args:
            query: (Q, D) floats, see `evaluate`.
            query_labels: (Q,) integers, booleans or strings. If `label_comparison_fn` is used, any
                tensor of Q entries.
            reference, reference_labels: (G, D) and (G,); by default, the queries.
            ref_includes_query: whether the first Q reference items are the queries, so that queries
                exclude themselves.
            include, exclude: see the constructor; only the constructor's metrics can be chosen.

        Returns:
            Name → value, or a list of values per class; NaN if none of the queries has a match.

        Raises:
            TypeError: if the dtype of an array is wrong.
            ValueError: if shapes do not match, or the first Q reference items are not the queries.
        """
        self._current = _choose(self._names, include, exclude)
        found: dict[str, Any] = {}
        clustering = [name for name in _CLUSTERING if name in self._current]
        if clustering:
            labels_Q = arguments.partition(query_labels, "query_labels")
            clusters_Q = self._kmeans(query, len(np.unique(labels_Q)))
            found = {name: _CLUSTERING[name](labels_Q, clusters_Q) for name in clustering}
        if _RETRIEVAL.keys() & self._current:
            sides = query, reference, query_labels, reference_labels
            found |= self._retrieve(*sides, includes=bool(ref_includes_query))
        return found

    def get_curr_metrics(self) -> list[str]:
        """Return the names of the metrics of the last call, or of the constructor before the first
        call.
        """
        return list(self._current)

    def requires_clustering(self) -> list[str]:
        """Return the names of metrics that need clusters."""
        return ["NMI", "AMI"]

    def requires_knn(self) -> list[str]:
        """Return the names of metrics that need a ranking."""
        return list(_RETRIEVAL)

    def description(self) -> str:
        """Return a word that testers can use in record names."""
        return "avg_of_avgs" if self._avg_of_avgs else ""

    def _retrieve(
        self,
        query: Any,
        reference: Any,
        query_labels: Any,
        reference_labels: Any,
        *,
        includes: bool,
    ) -> dict[str, Any]:
        sides = arguments.to_sides(query, reference, self._similarity, ("query", "reference"))
        if includes:
            _check_included(sides)
        gallery, excluded = sides.gallery, int(includes)
        if gallery is None or (includes and len(gallery) == len(sides.queries)):
            reference_labels, gallery, excluded = None, None, 1
        if self._compare is None:
            matches, gallery_labels = query_labels, reference_labels
            code_Q, size_Q = _count_labels(sides, query_labels, reference_labels)
        else:
            gallery_labels = None
            code_Q, size_Q, matches = _compare_labels(self._compare, query_labels, reference_labels)
        names = [name for name in _RETRIEVAL if name in self._current]
        R_Q, n_ranked = size_Q - excluded, len(sides.items) - excluded
        matched_Q = R_Q > 0
        if not matched_Q.any():
            nan = float("nan")
            return dict.fromkeys(
                names, [nan] * (int(code_Q.max()) + 1) if self._return_per_class else nan
            )
        k = (
            n_ranked
            if self._k is None
            else int(R_Q.max())
            if self._k == "max_bin_count"
            else self._k
        )
        of_k = [f"precision@{k}", f"mrr@{k}", f"map@{k}"] if k < n_ranked else []
        ours = [_RETRIEVAL[name] for name in names if name != "mean_average_precision" or not of_k]
        options: Options = {
            "metrics": [*ours, *of_k],
            "similarity": self._similarity,
            "unmatched": "zero",
        }
        if excluded and gallery is not None:
            options["exclude"] = np.arange(len(sides.queries))
        of = evaluate(sides.queries, matches, gallery, gallery_labels, **options).per_query
        values = {name: of[ours] for name, ours in _RETRIEVAL.items() if ours in of}
        if of_k:
            # pytorch-metric-learning divides the sum over the k nearest by R, but `evaluate` by
            # min(k, R).
            by_R_Q = of[f"map@{k}"] * (np.minimum(k, R_Q) / np.maximum(R_Q, 1))
            values |= {"mean_average_precision": by_R_Q, "mean_reciprocal_rank": of[f"mrr@{k}"]}
            few = {"mean_average_precision_at_r": by_R_Q, "r_precision": of[f"precision@{k}"]}
            values |= {
                name: np.where(k >= R_Q, values[name], few[name]) for name in few if name in values
            }
        return {name: self._average(values[name][matched_Q], code_Q[matched_Q]) for name in names}

    def _average(
        self, values: npt.NDArray[np.float64], codes: npt.NDArray[Any]
    ) -> float | list[float]:
        if not (self._avg_of_avgs or self._return_per_class):
            return float(values.mean())
        _, class_of = np.unique(codes, return_inverse=True)
        means = np.bincount(class_of, weights=values) / np.bincount(class_of)
        return means.tolist() if self._return_per_class else float(means.mean())


def _choose(names: Sequence[str], include: Any, exclude: Any) -> Sequence[str]:
    for given, argument in ((include, "include"), (exclude, "exclude")):
        if not isinstance(given, (tuple, list)):
            raise TypeError(
                f"{argument} is a {type(given).__name__}; expected a tuple or list of names"
            )
        for name in given:
            arguments.one_of(name, f"each of {argument}", _METRICS)
    return [name for name in names if name in (include or names) and name not in exclude]


def _check_included(sides: arguments.Sides) -> None:
    queries, items = sides.queries, sides.items
    for start in range(0, len(queries), 4096):
        block = queries[start : start + 4096]
        first = items[start : start + len(block)]
        same = np.isclose(block[: len(first)], first, rtol=1e-5, atol=1e-8).all(axis=1)
        at = start + int(np.argmin([*same, False]))
        if at < start + len(block):
            raise ValueError(
                f"ref_includes_query is set, but reference item {at} of {len(items)} is not query "
                f"{at}; expected the {len(queries)} queries to be the first reference items"
            )


def _count_labels(
    sides: arguments.Sides, labels: object, gallery_labels: object | None
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the queries' labels as codes, which sort like the labels, and the number of items with
    this label.
    """
    parts = [arguments.partition(labels, "query_labels", len(sides.queries), "query")]
    if gallery_labels is not None:
        parts.append(arguments.partition(gallery_labels, "reference_labels", len(sides.items)))
    codes = arguments.encode(*parts)
    return codes[0], np.bincount(codes[-1], minlength=int(codes[0].max()) + 1)[codes[0]]


def _compare_labels(
    compare: Callable[[Any, Any], Any], query_labels: Any, reference_labels: Any | None
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], Relevance]:
    """Return the queries' labels as codes, the number of items that match, and lists of these
    items.
    """
    import torch

    labels_Q = torch.as_tensor(query_labels).cpu()
    labels_G = labels_Q if reference_labels is None else torch.as_tensor(reference_labels).cpu()
    distinct, code_Q = torch.unique(labels_Q, dim=0, return_inverse=True)
    items = []
    for i in range(len(distinct)):
        matches = torch.as_tensor(compare(distinct[i : i + 1], labels_G))
        if matches.shape != (len(labels_G),):
            raise ValueError(
                f"label_comparison_fn returned shape {tuple(matches.shape)}, but there are "
                f"{len(labels_G)} reference labels; expected ({len(labels_G)},), whether each "
                "label matches"
            )
        items.append(np.flatnonzero(matches.numpy()))
    codes = code_Q.numpy()
    size_Q = np.array([len(found) for found in items])[codes]
    offsets = np.concatenate([[0], np.cumsum(size_Q)])
    return codes, size_Q, Relevance(offsets, np.concatenate([items[code] for code in codes]))

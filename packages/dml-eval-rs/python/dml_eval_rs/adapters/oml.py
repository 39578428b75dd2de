"""A replacement of OML's `EmbeddingMetrics`: the same figures from exact counts over the whole gallery.

Shapes: `L` items of the data set, `Q` queries, `G` gallery, `R` matches of a query.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import oml.metrics
import torch
from oml.const import CATEGORIES_COLUMN, OVERALL_CATEGORIES_KEY, SEQUENCE_COLUMN
from oml.functional.metrics import calc_topological_metrics, reduce_metrics, take_unreduced_metrics_by_mask

from dml_eval_rs.evaluation import Evaluation
from dml_eval_rs.retrieval import evaluate

_Ints = npt.NDArray[np.int64]


class EmbeddingMetrics(oml.metrics.EmbeddingMetrics):
    """A metric with the arguments, protocol and figures of OML's, but for a query without matches.

    cmc@k, precision@k (over min(k, R)) and map@k (over the matches among the first k) of the Euclidean distance; items
    of the query's sequence are left out. A query without matches counts 0; there, its precision is NaN.

    Args:
        args, kwargs: as in `oml.metrics.EmbeddingMetrics`, without `fmr_vals` and `postprocessor`.

    Attributes:
        evaluation: the last `Evaluation`, of `dml_eval_rs`; None before.

    Raises:
        ValueError: for `fmr_vals` or a postprocessor.
    """

    acc: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.evaluation: Evaluation | None = None
        if self.fmr_vals:
            raise ValueError(
                f"fmr_vals is {self.fmr_vals}; expected none: use dml_eval_rs.verify(..., far=...), whose TAR is "
                "1 - FNMR"
            )
        if self.postprocessor is not None:
            raise ValueError(
                f"postprocessor is a {type(self.postprocessor).__name__}, which reorders the nearest items; expected "
                "None, since no list of them is made"
            )

    def compute_metrics(self) -> dict[str, Any]:
        """Measure the embeddings of all items.

        Returns:
            Category → metric → k → mean; the category of all queries is OML's ``"OVERALL"``.

        Raises:
            ValueError: if some items have no embedding yet.
        """
        if not self.acc.is_storage_full():
            raise ValueError(
                f"{self.acc.collected_samples} of {self.acc.num_samples} items have an embedding; expected "
                "update(embeddings, indices) for all of them"
            )
        self.acc = self.acc.sync()
        embeddings = self.acc.storage[self._acc_embeddings_key]
        retrieval = self._measure(embeddings)
        topology = {"embeddings": embeddings, "pcf_variance": self.pcf_variance}
        if CATEGORIES_COLUMN in self.dataset.extra_data:
            categories = np.array(self.dataset.extra_data[CATEGORIES_COLUMN])
            category_Q = categories[self.dataset.get_query_ids()]
            of_queries = {
                each: take_unreduced_metrics_by_mask(retrieval, torch.from_numpy(category_Q == each))
                for each in np.unique(category_Q)
            }
            of_items = calc_topological_metrics(categories=categories, **topology)
            found = {OVERALL_CATEGORIES_KEY: retrieval, **of_queries}
            self.metrics_unreduced = {each: {**found[each], **of_items.get(each, {})} for each in found}
        else:
            self.metrics_unreduced = {
                OVERALL_CATEGORIES_KEY: {**retrieval, **calc_topological_metrics(**topology)}
            }
        self.metrics = reduce_metrics(self.metrics_unreduced)
        if self.return_only_overall_category:
            return {OVERALL_CATEGORIES_KEY: self.metrics[OVERALL_CATEGORIES_KEY]}
        return dict(self.metrics)

    def get_plot_for_queries(self, *args: Any, **kwargs: Any) -> Any:
        """Draw the nearest items, which OML searches now."""
        if self.retrieval_results is None:
            self._compute_retrieval_results()
        return super().get_plot_for_queries(*args, **kwargs)

    def _measure(self, embeddings: torch.Tensor) -> dict[str, dict[int, torch.Tensor]]:
        labels_L = np.asarray(self.dataset.get_labels())
        query_Q, item_G = (
            np.asarray(ids) for ids in (self.dataset.get_query_ids(), self.dataset.get_gallery_ids())
        )
        sequence_L = self.dataset.extra_data.get(SEQUENCE_COLUMN)
        # Without sequences, each item is left out for itself alone.
        alone_L = np.arange(len(labels_L)) if sequence_L is None else _encode(np.asarray(sequence_L))
        label_L = _encode(labels_L)
        offsets, left_out = _items_of(alone_L[query_Q], alone_L[item_G])
        found = evaluate(
            embeddings[query_Q],
            labels_L[query_Q],
            embeddings[item_G],
            labels_L[item_G],
            ignored=(offsets, left_out),
            similarity="euclidean",
            unmatched="zero",
            recall_at=self.cmc_top_k,
            precision_at={*self.precision_top_k, *self.map_top_k},
            average_precision_at=self.map_top_k,
        )
        self.evaluation = found
        both_L = label_L * (int(alone_L.max()) + 1) + alone_L
        R_Q = _count(label_L[query_Q], label_L[item_G]) - _count(both_L[query_Q], both_L[item_G])
        n_left_Q = len(item_G) - np.diff(offsets)
        longest = max((*self.cmc_top_k, *self.precision_top_k, *self.map_top_k))
        n_listed_Q = np.minimum(longest, n_left_Q)
        of = found.per_query
        metrics: dict[str, dict[int, npt.NDArray[Any]]] = {}
        for name, ks in (
            ("cmc", self.cmc_top_k),
            ("precision", self.precision_top_k),
            ("map", self.map_top_k),
        ):
            if ks:
                metrics[name] = {}
            for k in ks:
                if name == "cmc":
                    values = of[f"recall@{k}"]
                else:
                    hits_Q = np.rint(of[f"precision@{k}"] * k)
                    most_Q = np.minimum(R_Q, np.minimum(k, n_listed_Q))
                    values = hits_Q / np.maximum(most_Q, 1)
                    if name == "map":
                        total_Q = of[f"average_precision@{k}"] * np.minimum(k, R_Q)
                        values = total_Q / np.maximum(hits_Q, 1)
                # OML counts a query with nothing to find, and nothing found, as right.
                metrics[name][k] = np.where((R_Q == 0) & (n_left_Q == 0), 1.0, values)
        return {
            name: {k: torch.from_numpy(values).float() for k, values in by_k.items()}
            for name, by_k in metrics.items()
        }


def _encode(values: npt.NDArray[Any]) -> _Ints:
    codes: _Ints = np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return codes


def _count(of_Q: _Ints, of_G: _Ints) -> _Ints:
    """Count each query's equals in the gallery."""
    ordered = np.sort(of_G)
    counts: _Ints = np.searchsorted(ordered, of_Q, "right") - np.searchsorted(ordered, of_Q, "left")
    return counts


def _items_of(of_Q: _Ints, of_G: _Ints) -> tuple[_Ints, _Ints]:
    """List each query's equals in the gallery, as offsets and indices."""
    order = np.argsort(of_G, kind="stable")
    ordered = of_G[order]
    start_Q, stop_Q = np.searchsorted(ordered, of_Q, "left"), np.searchsorted(ordered, of_Q, "right")
    offsets = np.concatenate([[0], np.cumsum(stop_Q - start_Q)])
    return offsets, np.concatenate([order[start:stop] for start, stop in zip(start_Q, stop_Q)])

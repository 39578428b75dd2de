"""A replacement for OML's `EmbeddingMetrics`, with equal values, computed from exact counts over
the gallery.

Shapes: `L` items in the data set, `Q` queries, `G` gallery, `R` matches per query.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oml.metrics
import torch
from oml.const import CATEGORIES_COLUMN, OVERALL_CATEGORIES_KEY, SEQUENCE_COLUMN
from oml.functional.metrics import (
    calc_topological_metrics,
    reduce_metrics,
    take_unreduced_metrics_by_mask,
)

from dml_eval_rs.matches.labels import Labels
from dml_eval_rs.matches.relevance import relevance_from_labels
from dml_eval_rs.metrics.evaluation import Evaluation
from dml_eval_rs.retrieval import Options, evaluate


class EmbeddingMetrics(oml.metrics.EmbeddingMetrics):
    """A metric with the arguments, protocol and values of OML's metric, except if a query does not
    have a match.

    cmc@k, precision@k (over min(k, R)) and map@k (over the matches in the first k) are measured by
    Euclidean distance. Items in the query's sequence are excluded. Queries without a match count as
    0; OML's precision would be NaN.

    Args:
        args, kwargs: arguments of `oml.metrics.EmbeddingMetrics`, except `fmr_vals` and
            `postprocessor`.

    Attributes:
        evaluation: the last `dml_eval_rs` `Evaluation`, or None.

    Raises:
        ValueError: if `fmr_vals` or a postprocessor is given.
    """

    acc: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.evaluation: Evaluation | None = None
        if self.fmr_vals:
            raise ValueError(
                f"fmr_vals is {self.fmr_vals}; expected none: use dml_eval_rs.verify(..., "
                "metrics='tar@far=...'), where TAR is 1 - FNMR"
            )
        if self.postprocessor is not None:
            raise ValueError(
                f"postprocessor is a {type(self.postprocessor).__name__}; expected None, because "
                "items are only counted"
            )

    def compute_metrics(self) -> dict[str, Any]:
        """Measure all items, and return category → metric → k → mean; ``"OVERALL"`` contains all
        queries.

        Raises:
            ValueError: if the embeddings of some items are not given yet.
        """
        if not self.acc.is_storage_full():
            came = f"{self.acc.collected_samples} of {self.acc.num_samples} items have an embedding"
            raise ValueError(
                f"{came}; expected update(embeddings, indices) to be called for all items"
            )
        self.acc = self.acc.sync()
        embeddings = self.acc.storage[self._acc_embeddings_key]
        retrieval = self._measure(embeddings)
        found = {OVERALL_CATEGORIES_KEY: retrieval}
        topology = {"embeddings": embeddings, "pcf_variance": self.pcf_variance}
        if CATEGORIES_COLUMN in self.dataset.extra_data:
            categories = np.array(self.dataset.extra_data[CATEGORIES_COLUMN])
            category_Q = categories[self.dataset.get_query_ids()]
            for each in np.unique(category_Q):
                mask = torch.from_numpy(category_Q == each)
                found[each] = take_unreduced_metrics_by_mask(retrieval, mask)
            topological = calc_topological_metrics(categories=categories, **topology)
        else:
            topological = {OVERALL_CATEGORIES_KEY: calc_topological_metrics(**topology)}
        self.metrics_unreduced = {
            each: {**found[each], **topological.get(each, {})} for each in found
        }
        self.metrics = reduce_metrics(self.metrics_unreduced)
        if self.return_only_overall_category:
            return {OVERALL_CATEGORIES_KEY: self.metrics[OVERALL_CATEGORIES_KEY]}
        return dict(self.metrics)

    def get_plot_for_queries(self, *args: Any, **kwargs: Any) -> Any:
        """Draw the nearest items. OML searches for these items when this is first called."""
        if self.retrieval_results is None:
            self._compute_retrieval_results()
        return super().get_plot_for_queries(*args, **kwargs)

    def _measure(self, embeddings: torch.Tensor) -> dict[str, dict[int, torch.Tensor]]:
        labels_L = np.asarray(self.dataset.get_labels())
        query_Q, item_G = map(
            np.asarray, (self.dataset.get_query_ids(), self.dataset.get_gallery_ids())
        )
        # If sequences are not given, each item is a separate sequence.
        sequence_L = np.asarray(self.dataset.extra_data.get(SEQUENCE_COLUMN, range(len(labels_L))))
        sets_L = np.unique(sequence_L, return_inverse=True)[1].reshape(-1, 1)
        own = relevance_from_labels(list(sets_L[query_Q]), list(sets_L[item_G]))
        ks = {*self.precision_top_k, *self.map_top_k}
        names = [f"recall@{k}" for k in self.cmc_top_k]
        names += [f"{name}@{k}" for name in ("precision", "ir_recall", "map") for k in ks]
        options: Options = {"metrics": names, "similarity": "euclidean", "unmatched": "zero"}
        labels = Labels(labels_L[query_Q], ignored=(own.offsets, own.indices))
        gallery = embeddings[item_G], labels_L[item_G]
        self.evaluation = evaluate(embeddings[query_Q], labels, *gallery, **options)
        of = self.evaluation.per_query
        # OML divides the number of matches in the first k by min(k, R).
        precision = {k: np.maximum(of[f"precision@{k}"], of[f"ir_recall@{k}"]) for k in ks}
        found = {
            "cmc": {k: of[f"recall@{k}"] for k in self.cmc_top_k},
            "precision": {k: precision[k] for k in self.precision_top_k},
            "map": {
                k: of[f"map@{k}"] / np.where(precision[k] > 0, precision[k], 1)
                for k in self.map_top_k
            },
        }
        # OML counts a query as correct if its ranking is empty, because there is nothing to find.
        is_right_Q = torch.from_numpy(np.diff(own.offsets) == len(item_G))
        return {
            name: {
                k: torch.from_numpy(of_k).masked_fill(is_right_Q, 1).float()
                for k, of_k in by_k.items()
            }
            for name, by_k in found.items()
            if by_k
        }

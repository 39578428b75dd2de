"""Names of the metrics that an evaluation measures, and the result that the core's columns make."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from dml_eval_rs import arguments
from dml_eval_rs.clustering import Agreement
from dml_eval_rs.evaluation import Evaluation

# The metrics, and the number of queries without a match: name, every query's value, mean.
Columns = tuple[list[tuple[str, npt.NDArray[np.float64], float]], int]


def metric_names(
    recall_at: Iterable[int],
    precision_at: Iterable[int],
    average_precision_at: Iterable[int],
    ndcg_at: Iterable[int],
    average_precision: bool,
    recall_share_at: Iterable[int] = (),
    reciprocal_rank_at: Iterable[int] = (),
) -> list[str]:
    """Return the metrics' names, as `per_query` has them.

    Raises:
        TypeError: if a K is no integer, or `average_precision` is no boolean.
        ValueError: if a K is below 1.
    """
    if not isinstance(average_precision, (bool, np.bool_)):
        raise TypeError(
            f"average_precision is {average_precision!r}; expected True or False: every K goes to average_precision_at"
        )
    names = [f"recall@{k}" for k in arguments.counts(recall_at, "recall_at")]
    names += ["precision_at_1", "r_precision", "map_at_r", "reciprocal_rank"]
    names += [f"precision@{k}" for k in arguments.counts(precision_at, "precision_at")]
    names += [
        f"average_precision@{k}" for k in arguments.counts(average_precision_at, "average_precision_at")
    ]
    names += [f"ndcg@{k}" for k in arguments.counts(ndcg_at, "ndcg_at")]
    names += [f"recall_share@{k}" for k in arguments.counts(recall_share_at, "recall_share_at")]
    names += [f"reciprocal_rank@{k}" for k in arguments.counts(reciprocal_rank_at, "reciprocal_rank_at")]
    return names + (["average_precision", "inverse_negative_penalty"] if average_precision else [])


def evaluation_of(
    found: Columns,
    n_gallery: int,
    agreement: Agreement | None = None,
    queries: npt.NDArray[np.uintp] | None = None,
    n_queries: int | None = None,
) -> Evaluation:
    """Build the result from the core's columns.

    Args:
        found: the core's columns.
        n_gallery: number of gallery items.
        agreement: of labels and clusters, where requested.
        queries: the indices of the measured queries among `n_queries`; None for all. The others have NaN.
        n_queries: number of all queries, where `queries` is given.
    """
    columns, n_unmatched = found
    per_query = {name: values for name, values, _ in columns}
    if queries is not None and n_queries is not None:
        n_unmatched += n_queries - len(queries)
        for name, values in per_query.items():
            per_query[name] = np.full(n_queries, np.nan)
            per_query[name][queries] = values
    return Evaluation(
        means={name: mean for name, _, mean in columns},
        nmi=None if agreement is None else agreement.nmi,
        ami=None if agreement is None else agreement.ami,
        ari=None if agreement is None else agreement.ari,
        n_queries=len(per_query["reciprocal_rank"]),
        n_unmatched=n_unmatched,
        per_query=per_query,
        n_gallery=n_gallery,
    )

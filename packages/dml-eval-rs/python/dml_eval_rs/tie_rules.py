"""Retrieval metrics under several rules for ties.

Shapes: `Q` queries, `G` gallery, `D` dim, `W` bytes of a code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.evaluation import Evaluation
from dml_eval_rs.metric_names import evaluation_of, metric_names
from dml_eval_rs.peers import Peers, check_alike
from dml_eval_rs.relation import GradedLists, Lists, relate
from dml_eval_rs.retrieval import (
    SIMILARITIES,
    TIES,
    UNMATCHED,
    Progress,
    Ties,
    Unmatched,
    check_labels_of_gallery,
)


def evaluate_ties(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike | None = None,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    *,
    groups: npt.ArrayLike | None = None,
    gallery_groups: npt.ArrayLike | None = None,
    relevant: Lists | GradedLists | None = None,
    ignored: Lists | None = None,
    indices: npt.ArrayLike | None = None,
    junk: npt.ArrayLike = (),
    distractors: npt.ArrayLike = (),
    unmatched: Unmatched = "skip",
    similarity: Literal["cosine", "dot", "euclidean", "hamming"] = "cosine",
    recall_at: Iterable[int] = (1, 10, 100, 1000),
    precision_at: Iterable[int] = (),
    average_precision_at: Iterable[int] = (),
    ndcg_at: Iterable[int] = (),
    recall_share_at: Iterable[int] = (),
    reciprocal_rank_at: Iterable[int] = (),
    average_precision: bool = False,
    ties: Iterable[Ties] = TIES,
    threads: int | None = None,
    progress: Progress | None = None,
    peers: Peers | None = None,
) -> dict[Ties, Evaluation]:
    """Measure the metrics of `evaluate`, or `evaluate_codes`, under several rules for ties, from one count.

    Each rule has the bits of its own call: ``evaluate_ties(x, y)[rule] == evaluate(x, y, ties=rule)``. ``"optimistic"``
    and ``"pessimistic"`` bound every metric under any order of ties; only nDCG of grades depends on the order of tied
    matches, too.

    Args:
        embeddings: (Q, D) as in `evaluate`; with ``similarity="hamming"`` (Q, W) uint8 as in `evaluate_codes`.
        labels: (Q,) as in `evaluate`.
        gallery: (G, D), or (G, W); None: the queries are their own gallery.
        gallery_labels: (G,), of the labels' kind. Given if and only if `gallery` and `labels` are.
        groups, gallery_groups, relevant, ignored, indices, junk, distractors, unmatched: as in `evaluate`.
        similarity: ``"cosine"``, ``"dot"``, ``"euclidean"`` or ``"hamming"``.
        recall_at, precision_at, average_precision_at, ndcg_at, recall_share_at, reciprocal_rank_at: as in `evaluate`.
        average_precision: as in `evaluate`.
        ties: the rules, each once; see `evaluate`.
        threads, progress, peers: as in `evaluate`.

    Returns:
        Each rule → its evaluation, in the order of `ties`; `nmi`, `ami` and `ari` are None.

    Raises:
        TypeError: as `evaluate`, or if `ties` is a single string.
        ValueError: as `evaluate`, or if `ties` is empty, or has an unknown rule or one twice.
        KeyboardInterrupt: within a second of Ctrl-C.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import evaluate_ties
        >>> codes = np.zeros((3, 1), np.uint8)
        >>> found = evaluate_ties(codes, [0, 1, 0], similarity="hamming", recall_at=1)
        >>> {rule: evaluation.recall[1] for rule, evaluation in found.items()}
        {'index': 0.5, 'optimistic': 1.0, 'pessimistic': 0.0, 'expected': 0.5}
    """
    arguments.one_of(similarity, "similarity", (*SIMILARITIES, "hamming"))
    rules = _check_rules(ties)
    arguments.one_of(unmatched, "unmatched", UNMATCHED)
    metrics = metric_names(
        recall_at,
        precision_at,
        average_precision_at,
        ndcg_at,
        average_precision,
        recall_share_at,
        reciprocal_rank_at,
    )
    checked_threads = arguments.threads(threads)
    are_codes = similarity == "hamming"
    check_labels_of_gallery(gallery, gallery_labels, relevant, "gallery")
    queries, items = arguments.both_sides(embeddings, "embeddings", gallery, "gallery", are_codes=are_codes)
    arguments.warn_of_own_gallery(queries, items, "embeddings", "gallery", (indices, groups, ignored))
    relation = relate(
        queries,
        "embeddings",
        labels,
        items,
        "gallery",
        gallery_labels,
        groups=groups,
        gallery_groups=gallery_groups,
        relevant=relevant,
        ignored=ignored,
        indices=indices,
        junk=junk,
        distractors=distractors,
        unmatched=unmatched,
    )
    check_alike(peers, (similarity, metrics, rules, unmatched), queries, items, *relation.arrays())
    n_queries, n_gallery = len(queries), len(queries if items is None else items)
    shared: dict[str, Any] = {
        "metrics": metrics,
        "ties": rules,
        "zero_unmatched": unmatched == "zero",
        "threads": checked_threads,
        "progress": progress,
        "peers": peers,
    }
    if are_codes:
        if relation.kept is not None and items is None:
            queries = queries[relation.kept]
        elif relation.kept is not None and items is not None:
            items = items[relation.kept]
        found = _native.evaluate_codes(queries, items, relation, **shared)
    else:
        found = _native.evaluate(queries, items, relation, similarity=similarity, **shared)
    measured = relation.kept if items is None else None
    return {
        rule: evaluation_of(columns, n_gallery, None, measured, n_queries)
        for rule, columns in zip(rules, found, strict=True)
    }


def _check_rules(ties: Iterable[Ties]) -> list[Ties]:
    if isinstance(ties, str) or not isinstance(ties, Iterable):
        raise TypeError(
            f"ties is {ties!r}; expected several rules, such as ('optimistic', 'pessimistic'): evaluate takes one"
        )
    rules = list(ties)
    for rule in rules:
        arguments.one_of(rule, "ties", TIES)
    if not rules:
        raise ValueError(f"ties is empty; expected at least one rule of {', '.join(TIES)}")
    if len(set(rules)) < len(rules):
        raise ValueError(f"ties is {rules}; expected each rule once")
    return rules

"""Calls of all public functions that take arrays, for tests that apply to all functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import dml_eval_rs as ours

METRICS = ["map", "ndcg@10", "nmi"]
CODE: Any = {"similarity": "hamming"}


def calls_of(
    x: Any, codes: Any, labels: Any, rows: np.ndarray, row_codes: np.ndarray, ids: np.ndarray
) -> dict[str, Callable[[], object]]:
    """Return calls with these arrays, by the function's name.

    Args:
        x, codes, labels: embeddings, binary codes and labels in the container to test; each call
            uses one or more.
        rows, row_codes, ids: numpy arrays with these numbers, used for the other arguments.
    """
    n = len(ids)
    measured = ours.evaluate(rows, ids, threads=1)
    sets = [{label} for label in ids.tolist()]
    pairs = [[0, np.flatnonzero(ids == ids[0])[1]], [0, 1]]
    return {
        "Labels": lambda: ours.Labels(labels, ids % 3, junk=1, distractors=2),
        "Relevance": lambda: ours.Relevance(np.arange(n + 1), labels),
        "ami": lambda: ours.ami(labels, ids // 3),
        "ari": lambda: ours.ari(ids // 3, labels),
        "binarize": lambda: ours.binarize(x),
        "compare": lambda: ours.compare({"a": measured, "b": measured}, by=labels),
        "concatenate_blocks": lambda: ours.concatenate_blocks([rows, x]),
        "evaluate": lambda: ours.evaluate(rows, labels),
        "evaluate with a gallery and clusters": lambda: ours.evaluate(x, ids, rows, ids,
            metrics=METRICS),
        "evaluate of codes": lambda: ours.evaluate(codes, ids, metrics=METRICS, **CODE),
        "evaluate with lists": lambda: ours.evaluate(x, ours.relevance_from_labels(sets),
            metrics=METRICS[:2]),
        "evaluate with groups and junk": lambda: ours.evaluate(x,
            ours.Labels(ids, np.arange(n), junk=1)),
        "evaluate_levels": lambda: ours.evaluate_levels(x, {"class": ids, "superclass": ids // 5}),
        "evaluate_shards": lambda: ours.evaluate_shards([x], ids),
        "evaluate_ties": lambda: ours.evaluate_ties(x, ids),
        "expand_queries": lambda: ours.expand_queries(x, rows, 3),
        "hard_negatives": lambda: ours.hard_negatives(x, ids, 2, below="hardest"),
        "hard_negatives in a gallery": lambda: ours.hard_negatives(
            x, labels, 2, gallery=rows, gallery_labels=ids, below="hardest"
        ),
        "hard_negatives of codes": lambda: ours.hard_negatives(codes, ids, 2, **CODE),
        "index_recall": lambda: ours.index_recall(labels[:, None], rows, rows, 1),
        "index_recall of codes": lambda: ours.index_recall(ids[:, None], codes, row_codes, 1,
            **CODE),
        "kmeans": lambda: ours.kmeans(x, 2),
        "knn": lambda: ours.knn(rows, x, 5),
        "knn of codes": lambda: ours.knn(codes, None, 5, **CODE),
        "knn in allowed items": lambda: ours.knn(x, rows, 5,
            allowed=(ours.Labels(labels), ours.Labels(ids))),
        "knn_classify": lambda: ours.knn_classify(x, labels, rows, 3),
        "knn_shards": lambda: ours.knn_shards([rows], [x], 5),
        "nmi": lambda: ours.nmi(labels, ids // 3),
        "open_set": lambda: ours.open_set(rows, np.arange(n), x, ids),
        "open_set of codes": lambda: ours.open_set(codes, np.arange(n), row_codes, ids, **CODE),
        "range_search": lambda: ours.range_search(x, rows, 0.5),
        "range_search of codes": lambda: ours.range_search(codes, None, 5, **CODE),
        "rerank": lambda: ours.rerank(x, rows, 3, 5),
        "relevance_from_labels": lambda: ours.relevance_from_labels(x > 0.5),
        "top_pairs": lambda: ours.top_pairs(x, 5),
        "top_pairs of codes": lambda: ours.top_pairs(codes, 5, **CODE),
        "verify": lambda: ours.verify(x, ids),
        "verify of pairs": lambda: ours.verify(x, ids, pairs=pairs),
        "verify of codes": lambda: ours.verify(codes, ids, **CODE),
        "verify_shards": lambda: ours.verify_shards([x], ids),
    }  # fmt: skip

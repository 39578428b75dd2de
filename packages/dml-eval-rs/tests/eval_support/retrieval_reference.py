"""Slow, obvious evaluator, used as the tests' oracle: float64, query by query, a full sort.

Written from docs/reference/metrics.md; this does not use the package's code.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction

import numpy as np


def stated_sum(terms: np.ndarray) -> np.ndarray:
    """Sum rows in eight lanes and combine the lanes in the order given in
    docs/reference/metrics.md.
    """
    s = np.zeros((8, *terms.shape[:-1]))
    for i in range(terms.shape[-1]):
        s[i % 8] += terms[..., i]
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))


def scaled(x: np.ndarray) -> np.ndarray:
    """Scale float64 rows by powers of 2, so that the largest element is between 1 and 2."""
    if x.dtype != np.float64:
        return x
    _, exponent = np.frexp(np.abs(x).max(axis=-1, keepdims=True, initial=0))
    return np.ldexp(x, 1 - exponent)


def keys_of(query: np.ndarray, gallery: np.ndarray, similarity: str) -> list[float]:
    """Return the numbers used to sort the gallery for a query."""
    if similarity == "hamming":
        return (-np.unpackbits(query ^ gallery, axis=-1).sum(axis=-1, dtype=np.float64)).tolist()
    q, g = (scaled(query), scaled(gallery)) if similarity == "cosine" else (query, gallery)
    q, g = q.astype(np.float64), g.astype(np.float64)
    if similarity == "euclidean":
        return (-stated_sum((q - g) * (q - g))).tolist()
    dots = stated_sum(q * g)
    return (dots if similarity == "dot" else dots * np.abs(dots) / stated_sum(g * g)).tolist()


def metric_of_order(name: str, gains: Sequence[float]) -> Fraction:
    """Apply a metric's definition to a complete ranking, given as gains, which are 0 for items that
    do not match.
    """
    of, _, suffix = name.partition("@")
    ranks = [i for i, gain in enumerate(gains, 1) if gain > 0]
    r = len(ranks)
    # By default, when a suffix is not given, the full ranking is used.
    k = r if suffix == "r" else int(suffix or len(gains))
    within = [rank for rank in ranks if rank <= k]

    def dcg(gains: Sequence[float]) -> float:
        return math.fsum(gain / math.log2(i + 1) for i, gain in enumerate(gains[:k], 1))

    if of == "recall":
        return Fraction(int(bool(within)))
    if of == "precision":
        return Fraction(len(within), k)
    if of == "r_precision":
        return Fraction(sum(rank <= r for rank in ranks), r)
    if of == "map":
        return sum((Fraction(i, rank) for i, rank in enumerate(within, 1)), Fraction(0)) / min(k, r)
    if of == "mrr":
        return Fraction(1, within[0]) if within else Fraction(0)
    if of == "ir_recall":
        return Fraction(len(within), r)
    if of == "minp":
        return Fraction(r, ranks[-1])
    assert of == "ndcg", name
    return Fraction(dcg(gains)) / Fraction(dcg(sorted(gains, reverse=True)))


def query_metrics(
    keys: Sequence[float], gains: Sequence[float], metrics: Sequence[str], ties: str, unmatched: str
) -> dict[str, float]:
    """Measure a query. `keys` and `gains` must be in the gallery's order; excluded items should not
    be given.
    """
    if not any(gains):
        return dict.fromkeys(metrics, 0.0 if unmatched == "zero" else math.nan)
    if ties == "expected":
        return expected_metrics(keys, gains, metrics)
    prefer: dict[str, Callable[[int], int]] = {
        "index": lambda i: 0,
        "optimistic": lambda i: 0 if gains[i] else 1,
        "pessimistic": lambda i: 1 if gains[i] else 0,
    }
    order = sorted(range(len(keys)), key=lambda i: (-keys[i], prefer[ties](i), i))
    return {name: float(metric_of_order(name, [gains[i] for i in order])) for name in metrics}


def arrangements(gains: Sequence[float]) -> list[list[float]]:
    """List the distinct orders of gains."""
    if not gains:
        return [[]]
    rests = {gain: list(gains) for gain in set(gains)}
    for gain, rest in rests.items():
        rest.remove(gain)
    return [[gain, *order] for gain, rest in rests.items() for order in arrangements(rest)]


def expected_metrics(
    keys: Sequence[float], gains: Sequence[float], metrics: Sequence[str]
) -> dict[str, float]:
    """Average over all orders of gains within groups of tied items, which are equally likely."""
    order = sorted(range(len(keys)), key=lambda i: -keys[i])
    groups = [[gains[i] for i in g] for _, g in itertools.groupby(order, key=lambda i: keys[i])]
    total = dict.fromkeys(metrics, Fraction(0))
    n = 0
    for choice in itertools.product(*map(arrangements, groups)):
        n += 1
        arranged = [gain for group in choice for gain in group]
        for name in metrics:
            total[name] += metric_of_order(name, arranged)
    return {name: float(value / n) for name, value in total.items()}


def evaluate(
    embeddings: np.ndarray,
    labels: Sequence[object] | None,
    gallery: np.ndarray | None = None,
    gallery_labels: Sequence[object] | None = None,
    *,
    metrics: Sequence[str],
    similarity: str,
    ties: str = "index",
    groups: Sequence[object] | None = None,
    gallery_groups: Sequence[object] | None = None,
    relevant: Sequence[Mapping[int, float]] | None = None,
    ignored: Sequence[Collection[int]] | None = None,
    exclude: Sequence[int] | None = None,
    junk: Collection[object] = (),
    distractors: Collection[object] = (),
    unmatched: str = "skip",
) -> dict[str, np.ndarray]:
    """Measure all queries.

    Use `relevant` to give matches and grades by query instead of labels, `ignored` to list items to
    exclude from the query's ranking, and `exclude` to exclude a single item. Junk is excluded
    everywhere; distractors never match.
    """
    own = gallery is None
    gallery = embeddings if gallery is None else gallery
    gallery_labels = labels if own else gallery_labels
    gallery_groups = groups if own else gallery_groups
    rows = []
    for q, query in enumerate(embeddings):

        def gain(g: int, q: int = q) -> float:
            if relevant is not None:
                return relevant[q].get(g, 0)
            assert labels is not None
            assert gallery_labels is not None
            return float(gallery_labels[g] == labels[q] and labels[q] not in distractors)

        def is_excluded(g: int, q: int = q) -> bool:
            same_group = (
                groups is not None and gallery_groups is not None and gallery_groups[g] == groups[q]
            )
            return (
                g == (q if own else -1 if exclude is None else exclude[q])
                or (ignored is not None and g in ignored[q])
                or (gallery_labels is not None and gallery_labels[g] in junk)
                or (same_group and gain(g) > 0)
            )

        others = [g for g in range(len(gallery)) if not is_excluded(g)]
        if labels is not None and labels[q] in junk:
            rows.append(dict.fromkeys(metrics, math.nan if own or unmatched == "skip" else 0.0))
            continue
        keys = keys_of(query, gallery[others], similarity)
        rows.append(query_metrics(keys, [gain(g) for g in others], metrics, ties, unmatched))
    return {name: np.array([row[name] for row in rows]) for name in metrics}


def nearest(
    queries: np.ndarray, gallery: np.ndarray, k: int, similarity: str, exclude_self: bool
) -> tuple[list[list[float]], list[list[int]]]:
    """Return keys and indices of the k nearest items; ties are sorted by index."""
    all_keys, all_indices = [], []
    for q, query in enumerate(queries):
        keys = keys_of(query, gallery, similarity)
        order = sorted(
            (i for i in range(len(gallery)) if not (exclude_self and i == q)),
            key=lambda i: (-keys[i], i),
        )
        all_indices.append(order[:k])
        all_keys.append([keys[i] for i in order[:k]])
    return all_keys, all_indices

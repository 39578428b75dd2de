"""Slow references of the losses of smooth ranks: their equations as loops over float64 numbers; see `references`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from losses_support.references import positives_and_negatives, unit


def _queries(
    embeddings: Tensor, labels: Tensor, gallery: Tensor | None, gallery_labels: Tensor | None
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """The similarities of each query that has a positive: of its positives and of its negatives."""
    f, within = unit(embeddings), gallery is None
    g = f if gallery is None else unit(gallery)
    for q in range(len(f)):
        positives, negatives = positives_and_negatives(
            q, labels, labels if gallery_labels is None else gallery_labels, within
        )
        if positives:
            yield [f[q] @ g[i] for i in positives], [f[q] @ g[j] for j in negatives]


def _mean(terms: list[Tensor], embeddings: Tensor) -> Tensor:
    nothing = embeddings.sum() * 0  # back-propagates where all terms are constants
    return torch.stack(terms).mean() + nothing if terms else nothing


def _one_minus_ap(
    positives: list[Tensor],
    negatives: list[Tensor],
    above: Callable[[Tensor], Tensor],
    below: Callable[[Tensor], Tensor],
) -> Tensor:
    precisions = []
    for i, own in enumerate(positives):
        rank_of_positives = 1 + sum(above(s - own) for j, s in enumerate(positives) if j != i)
        rank = rank_of_positives + sum(below(s - own) for s in negatives)
        precisions.append(rank_of_positives / rank * torch.ones(()))
    return 1 - torch.stack(precisions).mean()


def smooth_ap_value(
    embeddings: Tensor,
    labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    temperature: float,
) -> Tensor:
    """Brown et al. 2020, without the query among its positives."""

    def step(d: Tensor) -> Tensor:
        return torch.sigmoid(d / temperature)

    queries = _queries(embeddings, labels, gallery, gallery_labels)
    return _mean([_one_minus_ap(p, n, step, step) for p, n in queries], embeddings)


def sup_ap_value(
    embeddings: Tensor,
    labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    temperature: float,
    slope: float,
    saturation: float,
) -> Tensor:
    """Ramzi et al. 2021, with a continuous H⁻."""

    def bound(d: Tensor) -> Tensor:
        if d <= 0:
            return torch.sigmoid(d / temperature)
        if d <= saturation:
            return torch.sigmoid(d / temperature) + 0.5
        return slope * (d - saturation) + 1 / (1 + math.exp(-saturation / temperature)) + 0.5

    queries = _queries(embeddings, labels, gallery, gallery_labels)
    return _mean([_one_minus_ap(p, n, lambda d: (d >= 0).to(d.dtype), bound) for p, n in queries], embeddings)


def recall_at_k_value(
    embeddings: Tensor,
    labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    ks: list[int],
    k_temperatures: list[float],
    rank_temperature: float,
) -> Tensor:
    """Patel et al. 2022, with both minima of the authors' code."""
    terms = []
    for positives, negatives in _queries(embeddings, labels, gallery, gallery_labels):
        ranks = [
            1
            + sum(torch.sigmoid((s - own) / rank_temperature) for j, s in enumerate(positives) if j != i)
            + sum(torch.sigmoid((s - own) / rank_temperature) for s in negatives)
            for i, own in enumerate(positives)
        ]
        for k, temperature in zip(ks, k_temperatures, strict=True):
            found = sum(torch.sigmoid((k - rank) * torch.ones(()) / temperature) for rank in ranks)
            terms.append(1 - torch.clamp(found, max=k) / min(k, len(positives)))
    return _mean(terms, embeddings)

"""The losses written from their equations: loops over float64 numbers, no shared code with the package.

Each returns its value and, where the paper defines the gradient itself, that gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor


def unit(rows: Tensor) -> Tensor:
    return torch.stack([row / row.norm() if row.norm() > 0 else row * 0 for row in rows])


def through_the_norm(rows: Tensor, unit_gradient: Tensor) -> Tensor:
    """∂L/∂x from ∂L/∂x̂: (I − x̂x̂ᵀ)/‖x‖ · ∂L/∂x̂."""
    result = torch.zeros_like(rows)
    for i, row in enumerate(rows):
        norm = row.norm()
        if norm > 0:
            direction = row / norm
            result[i] = (unit_gradient[i] - direction * (direction @ unit_gradient[i])) / norm
    return result


def positives_and_negatives(
    anchor: int, labels: Tensor, gallery_labels: Tensor, within: bool
) -> tuple[list[int], list[int]]:
    positives = [
        i
        for i in range(len(gallery_labels))
        if gallery_labels[i] == labels[anchor] and not (within and i == anchor)
    ]
    negatives = [j for j in range(len(gallery_labels)) if gallery_labels[j] != labels[anchor]]
    return positives, negatives


def instance_cross_entropy_value(
    embeddings: Tensor,
    labels: Tensor,
    scale: float,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
) -> Tensor:
    """−mean over pairs of log p̂, Eq. 3 with the scale of Eq. 11; differentiable."""
    f, within = unit(embeddings), gallery is None
    g = f if gallery is None else unit(gallery)
    g_labels = labels if gallery_labels is None else gallery_labels
    terms = []
    for a in range(len(f)):
        positives, negatives = positives_and_negatives(a, labels, g_labels, within)
        for i in positives:
            logits = torch.stack([scale * (f[a] @ g[i])] + [scale * (f[a] @ g[j]) for j in negatives])
            terms.append(torch.logsumexp(logits, 0) - logits[0])
    return torch.stack(terms).mean() if terms else embeddings.sum() * 0


def instance_cross_entropy_gradient(
    embeddings: Tensor,
    labels: Tensor,
    scale: float,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    anchor: bool,
    others: bool = True,
) -> tuple[Tensor, Tensor]:
    """Eq. 13-15, summed over anchors: the gradients with respect to embeddings and gallery.

    `others`: the gradients of positives and negatives that Eq. 15 gives. `anchor`: the same weights on the anchor.
    """
    f, within = unit(embeddings), gallery is None
    g = f if gallery is None else unit(gallery)
    g_labels = labels if gallery_labels is None else gallery_labels
    n = len(f)
    anchor_gradient, other_gradient = torch.zeros_like(f), torch.zeros_like(g)
    for a in range(n):
        positives, negatives = positives_and_negatives(a, labels, g_labels, within)
        if not positives or not negatives:
            continue
        negative_exp = {j: torch.exp(scale * (f[a] @ g[j])) for j in negatives}
        p = {}  # p̂(i|a)
        p_negative = {j: torch.zeros((), dtype=f.dtype) for j in negatives}  # Σ_i p̂(j|a,i), Eq. 12
        for i in positives:
            denominator = torch.exp(scale * (f[a] @ g[i])) + sum(negative_exp.values())
            p[i] = torch.exp(scale * (f[a] @ g[i])) / denominator
            for j in negatives:
                p_negative[j] = p_negative[j] + negative_exp[j] / denominator
        total = sum(1 - p[i] for i in positives)
        weights = {i: -(1 - p[i]) / total / (2 * n) for i in positives}  # Eq. 13, with Eq. 15's sign
        weights |= {j: p_negative[j] / total / (2 * n) for j in negatives}  # Eq. 14
        for k, weight in weights.items():
            if others:
                other_gradient[k] += weight * f[a]
            if anchor:
                anchor_gradient[a] += weight * g[k]
    if within:
        return through_the_norm(embeddings, anchor_gradient + other_gradient), torch.zeros(0)
    assert gallery is not None
    return through_the_norm(embeddings, anchor_gradient), through_the_norm(gallery, other_gradient)


def norm_softmax_value(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, temperature: float
) -> Tensor:
    """Eq. 5, differentiable."""
    x, p = unit(embeddings), unit(class_weights)
    terms = []
    for b in range(len(x)):
        logits = torch.stack([x[b] @ p[c] / temperature for c in range(len(p))])
        terms.append(torch.logsumexp(logits, 0) - logits[labels[b]])
    return torch.stack(terms).mean()

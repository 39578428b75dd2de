"""Slow references of the losses: their equations as loops over float64 numbers, without code of the package.

Each returns its value and, where the paper itself defines the gradient, that gradient.
"""

from __future__ import annotations

import math

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


def ranked_list_value(
    embeddings: Tensor,
    labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    margin: float,
    alpha: float,
    negative_temperature: float,
    positive_temperature: float,
    balance: float,
    query_weights: str = "equal",
) -> Tensor:
    """Eq. 8-14. Differentiable as section 3.2.4 says: weights and the other features are constants."""
    f, within = unit(embeddings), gallery is None
    g = (f if gallery is None else unit(gallery)).detach()
    g_labels = labels if gallery_labels is None else gallery_labels

    def weighted(violations: list[Tensor], temperature: float) -> tuple[Tensor, Tensor]:
        violating = [v for v in violations if v > 0]
        if not violating:
            return f.sum() * 0, torch.zeros(())
        weights = [torch.exp(temperature * v.detach()) for v in violating]
        return sum(w * v for w, v in zip(weights, violating)) / sum(weights), sum(weights)

    losses, totals = [], []
    for q in range(len(f)):
        positives, negatives = positives_and_negatives(q, labels, g_labels, within)

        pull, total_P = weighted(
            [(f[q] - g[i]).norm() - (alpha - margin) for i in positives], positive_temperature
        )
        push, total_N = weighted([alpha - (f[q] - g[j]).norm() for j in negatives], negative_temperature)
        losses.append((1 - balance) * pull + balance * push)
        totals.append(total_P + total_N)
    if query_weights == "equal":
        return torch.stack(losses).mean()
    return sum(w * loss for w, loss in zip(totals, losses)) / (sum(totals) or 1)


def margin_softmax_value(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, scale: float, angle: float, cosine: float
) -> Tensor:
    """CosFace, and ArcFace, Eq. 3, with the published continuation beyond π."""
    x, w = unit(embeddings), unit(class_weights)
    terms = []
    for b in range(len(x)):
        cosines = [x[b] @ w[c] for c in range(len(w))]
        theta = torch.arccos(cosines[labels[b]])
        if not angle:
            phi = cosines[labels[b]]
        elif theta + angle < math.pi:
            phi = torch.cos(theta + angle)
        else:
            phi = cosines[labels[b]] - angle * math.sin(angle)
        logits = [scale * (phi - cosine) if c == labels[b] else scale * cosines[c] for c in range(len(w))]
        terms.append(torch.logsumexp(torch.stack(logits), 0) - logits[labels[b]])
    return torch.stack(terms).mean()


def proxy_nca_value(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, scale: float, positive: bool
) -> Tensor:
    """Movshovitz-Attias et al., Eq. 5, on squared distances."""
    x, p = unit(embeddings), unit(class_weights)
    terms = []
    for b in range(len(x)):
        distances = [((x[b] - p[c]) ** 2).sum() for c in range(len(p))]
        others = torch.stack([-scale * d for c, d in enumerate(distances) if positive or c != labels[b]])
        terms.append(scale * distances[labels[b]] + torch.logsumexp(others, 0))
    return torch.stack(terms).mean()


def proxy_anchor_value(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, scale: float, margin: float
) -> Tensor:
    """Kim et al. 2020."""
    x, p = unit(embeddings), unit(class_weights)
    pulls, pushes = [], []
    for c in range(len(p)):
        positives = [x[b] @ p[c] for b in range(len(x)) if labels[b] == c]
        negatives = [x[b] @ p[c] for b in range(len(x)) if labels[b] != c]
        if positives:
            pulls.append(torch.log(1 + sum(torch.exp(-scale * (s - margin)) for s in positives)))
        if negatives:
            pushes.append(torch.log(1 + sum(torch.exp(scale * (s + margin)) for s in negatives)))
    push = torch.stack(pushes).sum() if pushes else 0
    return torch.stack(pulls).mean() + push / len(p)


def softmax_value(embeddings: Tensor, labels: Tensor, class_weights: Tensor, virtual: bool) -> Tensor:
    """MemVir, Eq. 2, and Virtual Softmax, Eq. 3."""
    terms = []
    for b in range(len(embeddings)):
        logits = [embeddings[b] @ w for w in class_weights]
        own = class_weights[labels[b]]
        extra = [own.norm() * (embeddings[b] @ embeddings[b]) / embeddings[b].norm()] if virtual else []
        terms.append(torch.logsumexp(torch.stack(logits + extra), 0) - logits[labels[b]])
    return torch.stack(terms).mean()


def curricular_face_value(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, t: float, scale: float, margin: float
) -> Tensor:
    """Huang et al., Eq. 5-9; past π, the authors' code replaces the true class's logit, but not the threshold."""
    x, w = unit(embeddings), unit(class_weights)
    terms = []
    for b in range(len(x)):
        cosines = [x[b] @ w[c] for c in range(len(w))]
        angle = torch.arccos(cosines[labels[b]])
        threshold = torch.cos(angle + margin)
        true = threshold if angle + margin < math.pi else cosines[labels[b]] - margin * math.sin(margin)
        logits = [
            true if c == labels[b] else (s if s <= threshold else s * (t + s)) for c, s in enumerate(cosines)
        ]
        logits = [scale * logit for logit in logits]
        terms.append(torch.logsumexp(torch.stack(logits), 0) - logits[labels[b]])
    return torch.stack(terms).mean()


def soft_triple_value(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    centers: int,
    scale: float,
    gamma: float,
    margin: float,
    tau: float,
) -> Tensor:
    """Qian et al., Eq. 6-9."""
    x, w = unit(embeddings), unit(class_weights)
    num_classes = len(w) // centers
    terms = []
    for b in range(len(x)):
        similarities = []
        for c in range(num_classes):
            s = torch.stack([x[b] @ w[c * centers + k] for k in range(centers)])
            similarities.append((torch.softmax(s / gamma, 0) * s).sum())
        logits = [scale * (s - margin if c == labels[b] else s) for c, s in enumerate(similarities)]
        terms.append(torch.logsumexp(torch.stack(logits), 0) - logits[labels[b]])
    loss = torch.stack(terms).mean()
    apart = [
        torch.sqrt(2 - 2 * (w[c * centers + k] @ w[c * centers + m]) + 1e-5)
        for c in range(num_classes)
        for m in range(centers)
        for k in range(m)
    ]
    return loss + tau * sum(apart) / (num_classes * centers * (centers - 1)) if apart else loss


def heated_up_batch_value(embeddings: Tensor, labels: Tensor, class_weights: Tensor, alpha: float) -> Tensor:
    """Heated-Up Softmax with batch normalisation, section 3.3."""
    w, d = unit(class_weights), embeddings.shape[1]
    columns = [
        (column - column.mean()) / torch.sqrt(((column - column.mean()) ** 2).mean() + 1e-5)
        for column in embeddings.T
    ]
    f = torch.stack(columns, dim=1) / d**0.5
    terms = []
    for b in range(len(f)):
        logits = torch.stack([alpha * (f[b] @ w[c]) for c in range(len(w))])
        terms.append(torch.logsumexp(logits, 0) - logits[labels[b]])
    return torch.stack(terms).mean()

"""Slow references of SupCon and SigLIP: their equations as loops over float64 numbers; see `references`."""

from __future__ import annotations

import torch
from torch import Tensor

from losses_support.references import positives_and_negatives, unit


def sup_con_value(
    embeddings: Tensor,
    labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    temperature: float,
) -> Tensor:
    """Khosla et al. 2020, L_out, as a mean over the anchors that have a positive."""
    f, within = unit(embeddings), gallery is None
    g = f if gallery is None else unit(gallery)
    g_labels = labels if gallery_labels is None else gallery_labels
    anchors = []
    for a in range(len(f)):
        positives, negatives = positives_and_negatives(a, labels, g_labels, within)
        others = torch.stack([f[a] @ g[j] / temperature for j in positives + negatives] or [f.sum() * 0])
        if positives:
            terms = [torch.logsumexp(others, 0) - f[a] @ g[i] / temperature for i in positives]
            anchors.append(torch.stack(terms).mean())
    return torch.stack(anchors).mean() if anchors else embeddings.sum() * 0


def siglip_value(
    embeddings: Tensor,
    labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    log_scale: Tensor,
    bias: Tensor,
) -> Tensor:
    """Zhai et al. 2023, with labels: z is 1 for two rows of one class, else −1."""
    f = unit(embeddings)
    g = f if gallery is None else unit(gallery)
    g_labels = labels if gallery_labels is None else gallery_labels
    total = (embeddings.sum() + log_scale + bias) * 0
    for i in range(len(f)):
        for j in range(len(g)):
            if gallery is None and i == j:
                continue
            z = 1 if labels[i] == g_labels[j] else -1
            total = total - torch.log(torch.sigmoid(z * (torch.exp(log_scale) * (f[i] @ g[j]) + bias)))
    return total / len(f)

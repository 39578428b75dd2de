"""Slow references of Sub-centre ArcFace and AdaFace: their equations as loops in float64; see `references`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from losses_support.references import unit


def sub_center_arc_face_value(
    embeddings: Tensor, labels: Tensor, class_weights: Tensor, centers: int, scale: float, margin: float
) -> Tensor:
    """Deng et al. 2020: ArcFace of the smallest angle to a class's centres."""
    x, w = unit(embeddings), unit(class_weights)
    terms = []
    for b in range(len(x)):
        cosines = [
            torch.stack([x[b] @ w[c * centers + k] for k in range(centers)]).max()
            for c in range(len(w) // centers)
        ]
        angle = torch.arccos(cosines[labels[b]])
        beyond = angle + margin >= math.pi
        true = cosines[labels[b]] - margin * math.sin(margin) if beyond else torch.cos(angle + margin)
        logits = torch.stack([scale * (true if c == labels[b] else s) for c, s in enumerate(cosines)])
        terms.append(torch.logsumexp(logits, 0) - logits[labels[b]])
    return torch.stack(terms).mean()


def ada_face_value(
    embeddings: Tensor,
    labels: Tensor,
    class_weights: Tensor,
    mean: float,
    std: float,
    scale: float,
    margin: float,
    concentration: float,
) -> Tensor:
    """Kim et al. 2022, with the limits of the authors' code, but for those of angles."""
    x, w = unit(embeddings), unit(class_weights)
    terms = []
    for b in range(len(x)):
        length = min(max(float(embeddings[b].detach().norm()), 0.001), 100.0)
        quality = min(max((length - mean) / (std + 0.001) * concentration, -1.0), 1.0)
        cosines = [x[b] @ w[c] for c in range(len(w))]
        angle = torch.clamp(torch.arccos(cosines[labels[b]]) - margin * quality, 0.0, math.pi)
        true = torch.cos(angle) - margin * (1 + quality)
        logits = torch.stack([scale * (true if c == labels[b] else s) for c, s in enumerate(cosines)])
        terms.append(torch.logsumexp(logits, 0) - logits[labels[b]])
    return torch.stack(terms).mean()

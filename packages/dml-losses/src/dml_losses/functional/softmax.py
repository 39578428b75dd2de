"""Softmax classification without normalisation, plain and with a virtual class."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from dml_core import ClassShard
from dml_losses.functional.classes import class_inputs
from dml_losses.functional.cosine_softmax import cosine_softmax


def softmax(
    embeddings: torch.Tensor, labels: torch.Tensor, class_weights: torch.Tensor | ClassShard
) -> torch.Tensor:
    """Compute the cross entropy of a softmax of inner products with class weights.

    L = −mean_b log( e^{w_yᵀx} / Σ_c e^{w_cᵀx} )

    Source: Learning with Memory-based Virtual Classes (MemVir), Eq. 2; no bias, as there.

    Args:
        embeddings, labels, class_weights: (B, D), (B,) and (C, D); see `dml_losses.functional`. Not normalised here.

    Returns:
        The loss, a scalar. Zero if there is one class.
    """
    if not isinstance(class_weights, torch.Tensor):
        return cosine_softmax(
            embeddings, labels, class_weights, 1.0, normalise=lambda rows: rows, normalise_weights=False
        )
    features_BD, labels, weights_CD = class_inputs(embeddings, labels, class_weights)
    with torch.autocast(features_BD.device.type, enabled=False):
        return cross_entropy(features_BD @ weights_CD.T, labels)


def virtual_softmax(
    embeddings: torch.Tensor, labels: torch.Tensor, class_weights: torch.Tensor
) -> torch.Tensor:
    """Compute the cross entropy of a softmax with one more class, in the direction of the embedding.

    L = −mean_b log( e^{w_yᵀx} / (Σ_c e^{w_cᵀx} + e^{w_virtᵀx}) ),  w_virt = ‖w_y‖ x/‖x‖, so that w_virtᵀx = ‖w_y‖‖x‖

    Source: Chen et al. 2018, Virtual Class Enhanced Discriminative Embedding Learning. The virtual class's logit
    has a gradient for both x and w_y, like any other logit.

    Args:
        embeddings, labels, class_weights: (B, D), (B,) and (C, D); see `dml_losses.functional`. Not normalised here.

    Returns:
        The loss, a scalar. At least log 2 with any number of classes.
    """
    features_BD, labels, weights_CD = class_inputs(embeddings, labels, class_weights)
    with torch.autocast(features_BD.device.type, enabled=False):
        logits_BC = features_BD @ weights_CD.T
    norm_B = torch.linalg.vector_norm(weights_CD[labels], dim=1)
    virtual_B1 = (norm_B * torch.linalg.vector_norm(features_BD, dim=1))[:, None]
    return cross_entropy(torch.cat((logits_BC, virtual_B1), dim=1), labels)

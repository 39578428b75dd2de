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
    """Compute the softmax cross entropy of inner products with class weights.

    L = −mean_b log( e^{w_yᵀx} / Σ_c e^{w_cᵀx} )

    Source: Learning with Memory-based Virtual Classes (MemVir), Eq. 2, which also has no bias.

    Args:
        embeddings, labels, class_weights: (B, D), (B,) and (C, D), not normalised; see
            `dml_losses.functional`.

    Returns:
        The loss, a scalar; zero if there is only one class.
    """
    if not isinstance(class_weights, torch.Tensor):
        return cosine_softmax(
            embeddings,
            labels,
            class_weights,
            1.0,
            normalise=lambda rows: rows,
            normalise_weights=False,
        )
    features_BD, labels, weights_CD = class_inputs(embeddings, labels, class_weights)
    with torch.autocast(features_BD.device.type, enabled=False):
        return cross_entropy(features_BD @ weights_CD.T, labels)


def virtual_softmax(
    embeddings: torch.Tensor, labels: torch.Tensor, class_weights: torch.Tensor
) -> torch.Tensor:
    """Compute the softmax cross entropy with an extra class in the direction of the embedding.

    L = −mean_b log( e^{w_yᵀx} / (Σ_c e^{w_cᵀx} + e^{w_virtᵀx}) ),
    w_virt = ‖w_y‖ x/‖x‖, so that w_virtᵀx = ‖w_y‖‖x‖

    Source: Chen et al. 2018, Virtual Class Enhanced Discriminative Embedding Learning. Like other
    logits, the logit of the virtual class has a gradient for both x and w_y.

    Args:
        embeddings, labels, class_weights: (B, D), (B,) and (C, D), not normalised; see
            `dml_losses.functional`.

    Returns:
        The loss, a scalar; at least log 2, for any number of classes.
    """
    features_BD, labels, weights_CD = class_inputs(embeddings, labels, class_weights)
    with torch.autocast(features_BD.device.type, enabled=False):
        logits_BC = features_BD @ weights_CD.T
    norm_B = torch.linalg.vector_norm(weights_CD[labels], dim=1)
    virtual_B1 = (norm_B * torch.linalg.vector_norm(features_BD, dim=1))[:, None]
    return cross_entropy(torch.cat((logits_BC, virtual_B1), dim=1), labels)

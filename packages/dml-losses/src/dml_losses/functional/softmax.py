"""Softmax classification without normalisation, plain and with a virtual class."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from dml_losses.arguments import check_batch, check_class_weights
from dml_losses.functional.sphere import common_precision


def softmax(embeddings: torch.Tensor, labels: torch.Tensor, class_weights: torch.Tensor) -> torch.Tensor:
    """Compute the cross entropy of a softmax of inner products with class weights.

    L = −mean_b log( e^{w_yᵀx} / Σ_c e^{w_cᵀx} )

    Source: Learning with Memory-based Virtual Classes (MemVir), Eq. 2; no bias, as there.

    Args:
        embeddings: (B, D), any floating dtype. Not normalised here.
        labels: (B,), integer in [0, C).
        class_weights: (C, D), any floating dtype. Not normalised here.

    Returns:
        The loss, a scalar in float32 (float64 if either side is float64). Zero if there is one class.

    Raises:
        TypeError: for embeddings or weights that aren't floating, or labels that aren't integers.
        ValueError: for shapes that don't fit, an empty batch, or (on CPU tensors) a label outside [0, C).
    """
    check_batch(embeddings, labels)
    check_class_weights(embeddings, labels, class_weights)
    features_BD, weights_CD = common_precision(embeddings, class_weights)
    with torch.autocast(features_BD.device.type, enabled=False):
        return cross_entropy(features_BD @ weights_CD.T, labels.long())


def virtual_softmax(
    embeddings: torch.Tensor, labels: torch.Tensor, class_weights: torch.Tensor
) -> torch.Tensor:
    """Compute the cross entropy of a softmax with one more class, in the direction of the embedding.

    L = −mean_b log( e^{w_yᵀx} / (Σ_c e^{w_cᵀx} + e^{w_virtᵀx}) ),  w_virt = ‖w_y‖ x/‖x‖, so that w_virtᵀx = ‖w_y‖‖x‖

    Source: Chen et al. 2018, Virtual Class Enhanced Discriminative Embedding Learning. The virtual class's logit
    has a gradient for both x and w_y, like any other logit.

    Args:
        embeddings: (B, D), any floating dtype. Not normalised here.
        labels: (B,), integer in [0, C).
        class_weights: (C, D), any floating dtype. Not normalised here.

    Returns:
        The loss, a scalar in float32 (float64 if either side is float64). At least log 2 with any number of classes.

    Raises:
        TypeError: for embeddings or weights that aren't floating, or labels that aren't integers.
        ValueError: for shapes that don't fit, an empty batch, or (on CPU tensors) a label outside [0, C).
    """
    check_batch(embeddings, labels)
    check_class_weights(embeddings, labels, class_weights)
    features_BD, weights_CD = common_precision(embeddings, class_weights)
    labels = labels.long()
    with torch.autocast(features_BD.device.type, enabled=False):
        logits_BC = features_BD @ weights_CD.T
    norm_B = torch.linalg.vector_norm(weights_CD[labels], dim=1)
    virtual_B1 = (norm_B * torch.linalg.vector_norm(features_BD, dim=1))[:, None]
    return cross_entropy(torch.cat((logits_BC, virtual_B1), dim=1), labels)

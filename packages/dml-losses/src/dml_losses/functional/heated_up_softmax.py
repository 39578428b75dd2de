"""Heated-up softmax: an inverse temperature that falls during training.

Shapes: `B` batch, `C` classes, `D` dim.
"""

from __future__ import annotations

from typing import Literal

import torch

from dml_losses.arguments import check_batch, check_class_weights
from dml_losses.functional.cosine_softmax import Virtual, cosine_softmax
from dml_losses.functional.sphere import common_precision, full_precision, unit_rows


def heated_up_softmax(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    *,
    alpha: float = 16.0,
    feature_norm: Literal["l2", "batch"] = "l2",
    virtual: Virtual | None = None,
) -> torch.Tensor:
    """Compute the cross entropy of a softmax of normalised inner products times an inverse temperature.

    L = −mean_b log( e^{α·f̃ᵀŵ_y} / Σ_c e^{α·f̃ᵀŵ_c} )

    where ŵ are the L2-normalised class weights, and f̃ is the L2-normalised embedding or BN(f)/√D, batch
    normalisation without learned scale and shift.

    Source: Heated-Up Softmax Embedding, Eq. 1-3 with section 3.3. Departure: no bias; the authors' code has one.

    Args:
        embeddings: (B, D), any floating dtype, not necessarily normalised.
        labels: (B,), integer in [0, C).
        class_weights: (C, D), any floating dtype, not necessarily normalised.
        alpha: α > 0, the inverse temperature: 16 in the paper, then 4 with a tenth of the learning rate.
        feature_norm: ``"l2"``, or ``"batch"`` with the mean and variance of this batch.
        virtual: further embeddings and classes, constant to the gradient (MemVir).

    Returns:
        The loss, a scalar in float32 (float64 if either side is float64). Zero if there is one class.

    Raises:
        TypeError: for embeddings or weights that aren't floating, or labels that aren't integers.
        ValueError: for shapes that don't fit, an empty batch, or (on CPU tensors) a label outside [0, C).
    """
    check_batch(embeddings, labels)
    check_class_weights(embeddings, labels, class_weights)
    features_BD, weights_CD = common_precision(embeddings, class_weights)
    if feature_norm == "l2":
        return cosine_softmax(unit_rows(features_BD), labels, weights_CD, alpha, virtual=virtual)
    if virtual is not None:  # all rows, past and present, are normalised as one batch
        virtual = virtual.in_precision(features_BD.dtype, features_BD.device)
        features_BD = torch.cat((features_BD, virtual.embeddings))
        labels = torch.cat((labels.long(), virtual.labels))
        weights_CD = torch.cat((weights_CD, *virtual.class_weights))
    return cosine_softmax(normalise_batch(features_BD)[0], labels, weights_CD, alpha)


def normalise_batch(
    embeddings: torch.Tensor, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute BN(f)/√D with the batch's own mean and (biased) variance, and return all three.

    Args:
        embeddings: (B, D), any floating dtype.
        eps: added to the variance, so that a constant dimension, or a batch of one, becomes zero.

    Returns:
        (B, D), (D,) and (D,), in float32 at least.
    """
    x_BD = full_precision(embeddings)
    mean_D = x_BD.mean(dim=0)
    centred_BD = x_BD - mean_D
    variance_D = centred_BD.square().mean(dim=0)
    normalised_BD = centred_BD * (variance_D + eps).rsqrt() * x_BD.shape[1] ** -0.5
    return normalised_BD, mean_D, variance_D

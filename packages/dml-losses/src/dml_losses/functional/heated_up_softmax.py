"""Heated-up softmax: an inverse temperature that falls during training.

Shapes: `B` batch, `C` classes, `D` dim.
"""

from __future__ import annotations

from typing import Literal

import torch

from dml_losses.functional.classes import ClassWeights, Virtual
from dml_losses.functional.cosine_softmax import cosine_softmax
from dml_losses.functional.sphere import full_precision


def heated_up_softmax(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: ClassWeights,
    *,
    alpha: float = 16.0,
    feature_norm: Literal["l2", "batch"] = "l2",
) -> torch.Tensor:
    """Compute the softmax cross entropy of normalised inner products times an inverse temperature.

    L = −mean_b log( e^{α·f̃ᵀŵ_y} / Σ_c e^{α·f̃ᵀŵ_c} )

    where ŵ are the L2-normalised class weights, and f̃ is the L2-normalised embedding or BN(f)/√D,
    batch normalisation without learned scale and shift.

    Source: Heated-Up Softmax Embedding, Eq. 1-3 with section 3.3. Departure: no bias, unlike the
    authors' code.

    Args:
        embeddings, labels, class_weights: (B, D), (B,) and (C, D); see `dml_losses.functional`.
        alpha: α > 0, the inverse temperature; default 16, as in the paper, which then uses 4 with a
            tenth of the learning rate.
        feature_norm: ``"l2"``, or ``"batch"`` to use the mean and variance of this batch.

    Returns:
        The loss, a scalar; zero if there is only one class.
    """
    if feature_norm == "l2":
        return cosine_softmax(embeddings, labels, class_weights, alpha)
    if isinstance(class_weights, Virtual):  # normalise all rows, past and present, as one batch
        embeddings, labels, class_weights = class_weights.join(embeddings, labels)
    return cosine_softmax(
        embeddings, labels, class_weights, alpha, normalise=lambda rows: normalise_batch(rows)[0]
    )


def normalise_batch(
    embeddings: torch.Tensor, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute BN(f)/√D with the mean and (biased) variance of the batch, and return all three.

    Args:
        embeddings: (B, D), any floating dtype.
        eps: added to the variance, so that a constant dimension, or a batch of one, becomes zero.

    Returns:
        (B, D), (D,) and (D,), in at least float32.
    """
    x_BD = full_precision(embeddings)
    mean_D = x_BD.mean(dim=0)
    centred_BD = x_BD - mean_D
    variance_D = centred_BD.square().mean(dim=0)
    normalised_BD = centred_BD * (variance_D + eps).rsqrt() * x_BD.shape[1] ** -0.5
    return normalised_BD, mean_D, variance_D

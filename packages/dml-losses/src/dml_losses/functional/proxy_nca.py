"""Proxy-NCA: neighbourhood component analysis with one proxy for each class."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_batch, check_class_weights
from dml_losses.functional.cosine_softmax import Virtual, cosine_softmax
from dml_losses.functional.sphere import common_precision, unit_rows


def proxy_nca(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    *,
    scale: float = 1.0,
    positive_in_denominator: bool = False,
    virtual: Virtual | None = None,
) -> torch.Tensor:
    """Compute the loss that draws each embedding nearer to its class's proxy than to the others.

    L = −mean_b log( e^{−s·d(x̂,p̂_y)} / Σ_{c≠y} e^{−s·d(x̂,p̂_c)} ),  d the squared Euclidean distance

    Source: Movshovitz-Attias et al. 2017, No Fuss Distance Metric Learning using Proxies, with NCA
    (both sides normalised). Departure: the factor s, which is 1 in the paper. MemVir's code has s = 12 and the
    positive in the denominator.

    Args:
        embeddings: (B, D), any floating dtype, not necessarily normalised.
        labels: (B,), integer in [0, C).
        class_weights: (C, D), any floating dtype, not necessarily normalised.
        scale: s > 0.
        positive_in_denominator: add the true class to the sum, so that it is a softmax and the loss positive.
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
    # d = 2 − 2·cos θ, and the 2 cancels between the numerator and the denominator.
    return cosine_softmax(
        unit_rows(features_BD),
        labels,
        weights_CD,
        2 * scale,
        positive_in_denominator=positive_in_denominator,
        virtual=virtual,
    )

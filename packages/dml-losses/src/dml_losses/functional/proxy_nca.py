"""Proxy-NCA: neighbourhood component analysis with one proxy per class."""

from __future__ import annotations

import torch

from dml_losses.functional.classes import ClassWeights
from dml_losses.functional.cosine_softmax import cosine_softmax


def proxy_nca(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: ClassWeights,
    *,
    scale: float = 1.0,
    positive_in_denominator: bool = False,
) -> torch.Tensor:
    """Compute the loss that draws each embedding nearer to the proxy of its class than to other
    proxies.

    L = −mean_b log( e^{−s·d(x̂,p̂_y)} / Σ_{c≠y} e^{−s·d(x̂,p̂_c)} ),  d the squared Euclidean distance

    Source: Movshovitz-Attias et al. 2017, No Fuss Distance Metric Learning using Proxies, with NCA
    (both sides normalised). Departure: the factor s, 1 in the paper. MemVir's code has s = 12 and
    the positive in the denominator.

    Args:
        embeddings, labels, class_weights: (B, D), (B,) and (C, D); see `dml_losses.functional`.
        scale: s > 0; default 1, as in the paper.
        positive_in_denominator: also sum over the true class, so that this is a softmax and the
            loss is positive.

    Returns:
        The loss, a scalar; zero if there is only one class.
    """
    # d = 2 − 2·cos θ, and the 2 cancels between the numerator and the denominator.
    return cosine_softmax(
        embeddings,
        labels,
        class_weights,
        2 * scale,
        positive_in_denominator=positive_in_denominator,
    )

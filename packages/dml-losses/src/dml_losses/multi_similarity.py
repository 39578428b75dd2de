"""Multi-similarity loss as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_finite, check_non_negative, check_positive, show
from dml_losses.functional.multi_similarity import multi_similarity


class MultiSimilarity(torch.nn.Module):
    """The hardest pairs of a query, selected and weighted by their similarity.

    Use it for batches of several images per class, if class weights aren't wanted. For the
    equation, see `dml_losses.functional.multi_similarity`.

    Args:
        alpha, beta, threshold, epsilon: see `multi_similarity`.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.
    """

    def __init__(
        self, alpha: float = 2.0, beta: float = 50.0, threshold: float = 0.5, epsilon: float = 0.1
    ) -> None:
        super().__init__()
        self.alpha = check_positive("alpha", alpha)
        self.beta = check_positive("beta", beta)
        self.threshold = check_finite("threshold", threshold)
        self.epsilon = check_non_negative("epsilon", epsilon)

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        gallery: torch.Tensor | None = None,
        gallery_labels: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,); the default gallery is the
        batch itself.
        """
        return multi_similarity(
            embeddings,
            labels,
            gallery,
            gallery_labels,
            alpha=self.alpha,
            beta=self.beta,
            threshold=self.threshold,
            epsilon=self.epsilon,
        )

    extra_repr = show("alpha", "beta", "threshold", "epsilon")

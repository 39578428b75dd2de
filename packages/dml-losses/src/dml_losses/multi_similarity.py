"""Multi-similarity loss as a module."""

from __future__ import annotations

from dml_losses.arguments import check_finite, check_non_negative, check_positive
from dml_losses.functional.multi_similarity import multi_similarity
from dml_losses.pair_module import PairModule


class MultiSimilarity(PairModule):
    """The hardest pairs of a query, selected and weighted by their similarity.

    Use it for batches of several images per class, if class weights aren't wanted. For the
    equation, see `dml_losses.functional.multi_similarity`.

    Args:
        alpha, beta, threshold, epsilon: see `multi_similarity`.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.
    """

    _function = staticmethod(multi_similarity)
    _options = ("alpha", "beta", "threshold", "epsilon")

    def __init__(
        self, alpha: float = 2.0, beta: float = 50.0, threshold: float = 0.5, epsilon: float = 0.1
    ) -> None:
        super().__init__()
        self.alpha = check_positive("alpha", alpha)
        self.beta = check_positive("beta", beta)
        self.threshold = check_finite("threshold", threshold)
        self.epsilon = check_non_negative("epsilon", epsilon)

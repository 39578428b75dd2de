"""Ranked list loss as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_finite, check_fraction, check_non_negative, check_positive
from dml_losses.functional.ranked_list import QueryWeights, check_query_weights, ranked_list


class RankedListLoss(torch.nn.Module):
    """Negatives beyond a boundary, positives inside a hypersphere, violations weighted by their size.

    L = Σ_q ω_q·((1 − λ)·L_P(q) + λ·L_N(q)); see `dml_losses.functional.ranked_list`.

    Source: Ranked List Loss for Deep Metric Learning, Eq. 8-14.

    Args:
        margin: m ≥ 0, at most α; 0.4 in the paper; 0.2 on CUB in the authors' code.
        alpha: α > 0, the smallest distance of negatives; 1.2 in the paper.
        negative_temperature: T_n; 10 in the paper. Eq. 15's dynamic weighting is a linear schedule of this attribute.
        positive_temperature: T_p; 0 in the paper.
        balance: λ in [0, 1]; 0.5 in the paper.
        query_weights: ω, "equal" as in the paper, or "total" as in the authors' code.

    Raises:
        TypeError: for a parameter that is no number.
        ValueError: for a parameter outside its range, a margin above α, or other `query_weights`.
    """

    def __init__(
        self,
        margin: float = 0.4,
        alpha: float = 1.2,
        negative_temperature: float = 10.0,
        positive_temperature: float = 0.0,
        balance: float = 0.5,
        query_weights: QueryWeights = "equal",
    ) -> None:
        super().__init__()
        self.margin = check_non_negative("margin", margin)
        self.alpha = check_positive("alpha", alpha)
        self.negative_temperature = check_finite("negative_temperature", negative_temperature)
        self.positive_temperature = check_finite("positive_temperature", positive_temperature)
        self.balance = check_fraction("balance", balance)
        self.query_weights = check_query_weights(query_weights)
        if self.margin > self.alpha:
            raise ValueError(
                f"margin is {margin}; expected at most alpha, {alpha}: alpha - margin is the diameter of a class"
            )

    @classmethod
    def simpler(
        cls,
        margin: float = 0.4,
        negative_temperature: float = 10.0,
        query_weights: QueryWeights = "equal",
    ) -> RankedListLoss:
        """Make RLL-Simpler (section 3.4): boundaries 1 ± m/2 around the distance 1, and T_p = 0.

        Raises:
            TypeError: for a parameter that is no number.
            ValueError: for a margin outside [0, 2], a temperature that isn't finite, or other `query_weights`.
        """
        alpha = 1 + check_non_negative("margin", margin) / 2
        return cls(margin, alpha, negative_temperature, query_weights=query_weights)

    @property
    def hypersphere_diameter(self) -> float:
        """The diameter α − m within which positives violate nothing (section 3.3)."""
        return self.alpha - self.margin

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        gallery: torch.Tensor | None = None,
        gallery_labels: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,), against the gallery or the batch itself."""
        return ranked_list(
            embeddings,
            labels,
            gallery,
            gallery_labels,
            margin=self.margin,
            alpha=self.alpha,
            negative_temperature=self.negative_temperature,
            positive_temperature=self.positive_temperature,
            balance=self.balance,
            query_weights=self.query_weights,
        )

    def extra_repr(self) -> str:
        """Return the parameters, for `repr`."""
        return (
            f"margin={self.margin}, alpha={self.alpha}, negative_temperature={self.negative_temperature}, "
            f"positive_temperature={self.positive_temperature}, balance={self.balance}, "
            f"query_weights={self.query_weights!r}"
        )

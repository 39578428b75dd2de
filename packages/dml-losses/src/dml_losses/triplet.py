"""Triplet loss as a module."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from dml_losses.arguments import check_choice, check_margin, show
from dml_losses.functional.triplet import Triplets, triplet


class Triplet(torch.nn.Module):
    """A loss of triplets in which a positive should be nearer to the anchor than a negative, by a
    margin.

    Use it beside a class loss, as the re-identification baseline does, or as a baseline. For the
    equations, see `dml_losses.functional.triplet`.

    Args:
        triplets, margin: see `triplet`. A schedule can change the margin.

    Raises:
        TypeError: if the margin is neither "soft" nor a number.
        ValueError: if the margin isn't finite or is below 0, or `triplets` is unknown.
    """

    def __init__(
        self, triplets: Triplets = "batch-hard", margin: float | Literal["soft"] = 0.2
    ) -> None:
        super().__init__()
        check_choice("triplets", triplets, get_args(Triplets))
        self.triplets: Triplets = triplets
        self.margin = check_margin(margin)

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
        return triplet(
            embeddings,
            labels,
            gallery,
            gallery_labels,
            triplets=self.triplets,
            margin=self.margin,
        )

    extra_repr = show("triplets", "margin")

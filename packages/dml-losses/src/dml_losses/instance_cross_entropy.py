"""Instance cross entropy as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_positive, show
from dml_losses.functional.instance_cross_entropy import instance_cross_entropy


class InstanceCrossEntropy(torch.nn.Module):
    """A softmax of each positive against the negatives of its anchor, with the gradient rescaled for each anchor.

    The equations are in `dml_losses.functional.instance_cross_entropy`. Use it to compare each positive with all
    negatives of its anchor.

    Args:
        scale, reweight, anchor_gradient: as `instance_cross_entropy`. A schedule can move the scale.

    Raises:
        TypeError: for a scale that is no number.
        ValueError: for a scale that isn't finite and positive.

    Example:
        >>> import torch
        >>> from dml_losses import InstanceCrossEntropy
        >>> embeddings, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
        >>> loss = InstanceCrossEntropy(scale=16.0)
        >>> round(loss(embeddings, labels).item(), 4)  # log 3: a positive is as near as the two negatives
        1.0986
    """

    def __init__(self, scale: float = 64.0, reweight: bool = True, anchor_gradient: bool = False) -> None:
        super().__init__()
        self.scale = check_positive("scale", scale)
        self.reweight = reweight
        self.anchor_gradient = anchor_gradient

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        gallery: torch.Tensor | None = None,
        gallery_labels: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,), against the gallery or the batch itself."""
        return instance_cross_entropy(
            embeddings,
            labels,
            gallery,
            gallery_labels,
            scale=self.scale,
            reweight=self.reweight,
            anchor_gradient=self.anchor_gradient,
        )

    extra_repr = show("scale", "reweight", "anchor_gradient")

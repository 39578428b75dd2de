"""Instance cross entropy as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_positive
from dml_losses.functional.instance_cross_entropy import instance_cross_entropy


class InstanceCrossEntropy(torch.nn.Module):
    """A softmax of each positive against the negatives of its anchor, with the gradient rescaled for each anchor.

    L = −mean over (anchor a, positive i) of log p̂(i|a), with the gradient of Eq. 13-15; see
    `dml_losses.functional.instance_cross_entropy` for both in full.

    Source: Instance Cross Entropy for Deep Metric Learning, Eq. 3-15.

    Args:
        scale: s > 0; 64 in the paper. A schedule can move this attribute.
        reweight: use the gradient of Eq. 13-15 instead of the loss's derivative.
        anchor_gradient: let the weights of Eq. 13-14 move the anchor as well.

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

    def extra_repr(self) -> str:
        """Return the parameters, for `repr`."""
        return f"scale={self.scale}, reweight={self.reweight}, anchor_gradient={self.anchor_gradient}"

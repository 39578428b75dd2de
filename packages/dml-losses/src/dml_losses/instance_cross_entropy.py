"""Instance cross entropy as a module."""

from __future__ import annotations

from dml_losses.arguments import check_positive
from dml_losses.functional.instance_cross_entropy import instance_cross_entropy
from dml_losses.pair_module import PairModule


class InstanceCrossEntropy(PairModule):
    """A softmax of each positive against the negatives of its anchor, with the gradient rescaled
    for each anchor.

    Use it to compare a positive with all negatives of its anchor. For the equations, see
    `instance_cross_entropy`.

    Args:
        scale, reweight, anchor_gradient: see `instance_cross_entropy`. A schedule can change the
            scale.

    Raises:
        TypeError: if the scale isn't a number.
        ValueError: if the scale isn't finite and positive.

    Example:
        >>> import torch
        >>> from dml_losses import InstanceCrossEntropy
        >>> embeddings, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
        >>> loss = InstanceCrossEntropy(scale=16.0)
        >>> # log 3: a positive is as near as the two negatives
        >>> round(loss(embeddings, labels).item(), 4)
        1.0986
    """

    _function = staticmethod(instance_cross_entropy)
    _options = ("scale", "reweight", "anchor_gradient")

    def __init__(
        self, scale: float = 64.0, reweight: bool = True, anchor_gradient: bool = False
    ) -> None:
        super().__init__()
        self.scale = check_positive("scale", scale)
        self.reweight = reweight
        self.anchor_gradient = anchor_gradient

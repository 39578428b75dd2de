"""CurricularFace as a module."""

from __future__ import annotations

import torch

from dml_core import ClassShard
from dml_losses.arguments import check_angle, check_fraction, check_positive, show
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.curricular_face import curricular_face, mean_true_cosine


class CurricularFace(torch.nn.Module):
    """ArcFace with hard negatives whose weight grows during training:
    `dml_losses.functional.curricular_face`.

    Use it instead of ArcFace to stress hard negatives late in training.

    t is a moving average of the mean cosine between the embeddings of a batch and their classes. In
    training mode, each call first updates t ← μ·mean_b cos θ_y + (1 − μ)·t.

    Args:
        num_classes, embedding_dim: C and D, both at least 1.
        scale, margin: see `curricular_face`.
        momentum: μ in [0, 1], the weight of the newest batch in t; default 0.01, as in the authors'
            code.

    Attributes:
        class_weights: (C, D), drawn uniformly from ±1/√D. Pass it to the optimizer.
        progress: t, a scalar buffer that starts at 0.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.
    """

    progress: torch.Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        scale: float = 64.0,
        margin: float = 0.5,
        momentum: float = 0.01,
    ) -> None:
        super().__init__()
        self.class_weights = initial_class_weights(num_classes, embedding_dim)
        self.scale = check_positive("scale", scale)
        self.margin = check_angle("margin", margin)
        self.momentum = check_fraction("momentum", momentum)
        self.register_buffer("progress", torch.zeros(()))

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: torch.Tensor | ClassShard | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C). In training
        mode, update t first.
        """
        weights = self.class_weights if class_weights is None else class_weights
        if self.training:
            fit = mean_true_cosine(embeddings, labels, weights)
            self.progress.lerp_(fit.to(self.progress.dtype), self.momentum)
        return curricular_face(
            embeddings, labels, weights, self.progress, scale=self.scale, margin=self.margin
        )

    sharded_forward = forward
    extra_repr = show("scale", "margin", "momentum")

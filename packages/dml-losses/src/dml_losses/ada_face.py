"""AdaFace as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import (
    check_angle,
    check_fraction,
    check_non_negative,
    check_positive,
    show,
)
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.ada_face import ada_face, limit_norms
from dml_losses.functional.classes import ClassWeights, class_inputs, takes_virtual


class AdaFace(torch.nn.Module):
    """Softmax of scaled cosines, with margins that follow the embedding's length:
    `dml_losses.functional.ada_face`.

    Use it if image quality varies. The network must not normalise its embeddings: if it does, the
    loss is CosFace.

    μ and σ are moving averages of the mean and the standard deviation of the embeddings' lengths.
    In training mode, each call first updates μ ← α·mean_b ‖x_b‖ + (1 − α)·μ, and σ likewise; a
    single embedding only updates μ.

    Args:
        num_classes, embedding_dim: C and D, both at least 1.
        scale, margin, concentration: see `ada_face`.
        momentum: α in [0, 1], the weight of the newest batch in μ and σ; default 0.01, as in the
            authors' code.

    Attributes:
        class_weights: (C, D), drawn uniformly from ±1/√D. Pass it to the optimizer.
        norm_mean, norm_std: μ and σ, scalar buffers that start at 20 and 100, as in the authors'
            code.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.
    """

    norm_mean: torch.Tensor
    norm_std: torch.Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        scale: float = 64.0,
        margin: float = 0.4,
        concentration: float = 0.333,
        momentum: float = 0.01,
    ) -> None:
        super().__init__()
        self.class_weights = initial_class_weights(num_classes, embedding_dim)
        self.scale = check_positive("scale", scale)
        self.margin = check_angle("margin", margin)
        self.concentration = check_non_negative("concentration", concentration)
        self.momentum = check_fraction("momentum", momentum)
        self.register_buffer("norm_mean", torch.tensor(20.0))
        self.register_buffer("norm_std", torch.tensor(100.0))

    @takes_virtual
    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: ClassWeights | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,); in training, update μ and
        σ first.
        """
        weights = self.class_weights if class_weights is None else class_weights
        if self.training:
            class_inputs(
                embeddings, labels, weights
            )  # raise errors before an invalid batch changes μ and σ
            self._track(limit_norms(embeddings))
        return ada_face(
            embeddings,
            labels,
            weights,
            self.norm_mean,
            self.norm_std,
            scale=self.scale,
            margin=self.margin,
            concentration=self.concentration,
        )

    sharded_forward = forward

    @torch.no_grad()
    def _track(self, norms_B: torch.Tensor) -> None:
        """Update μ and σ by the lengths of a batch's embeddings."""
        self.norm_mean.lerp_(norms_B.mean().to(self.norm_mean.dtype), self.momentum)
        if len(norms_B) > 1:
            self.norm_std.lerp_(norms_B.std().to(self.norm_std.dtype), self.momentum)

    extra_repr = show("scale", "margin", "concentration", "momentum")

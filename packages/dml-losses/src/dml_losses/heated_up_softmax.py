"""Heated-up softmax as a module."""

from __future__ import annotations

from typing import Literal

import torch

from dml_losses.arguments import check_positive, show
from dml_losses.class_weights import initial_class_weights
from dml_losses.functional.classes import ClassWeights, takes_virtual
from dml_losses.functional.heated_up_softmax import heated_up_softmax, normalise_batch
from dml_losses.functional.sphere import full_precision, unit_rows

_MOMENTUM, _EPS = 0.1, 1e-5  # the defaults of torch's batch normalisation


class HeatedUpSoftmax(torch.nn.Module):
    """Softmax of normalised inner products times α, which falls (the temperature rises) during
    training.

    For the equation, see `dml_losses.functional.heated_up_softmax`. To heat up, schedule ``alpha``:
    16, then 4 with a tenth of the learning rate. Use it if classes should be compact in the end,
    but training can't start with a low α.

    Args:
        num_classes, embedding_dim: C and D, both at least 1.
        alpha: see `heated_up_softmax`. A schedule can change this attribute.
        feature_norm: see `heated_up_softmax`; ``"l2"`` is the paper's LN and HLN, ``"batch"`` BN
            and HBN.

    Attributes:
        class_weights: (C, D), drawn uniformly from ±1/√D. Pass it to the optimizer.
        running_mean, running_var: (D,), statistics of embeddings in training mode; only with
            ``"batch"``.

    Raises:
        TypeError: if a size isn't an integer, or another parameter isn't a number.
        ValueError: if a size is below 1, `feature_norm` is unknown, or alpha isn't finite and
            positive.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        alpha: float = 16.0,
        feature_norm: Literal["l2", "batch"] = "l2",
    ) -> None:
        super().__init__()
        if feature_norm not in ("l2", "batch"):
            raise ValueError(f"feature_norm is {feature_norm!r}; expected 'l2' or 'batch'")
        self.class_weights = initial_class_weights(num_classes, embedding_dim)
        self.alpha = check_positive("alpha", alpha)
        self.feature_norm: Literal["l2", "batch"] = feature_norm
        if feature_norm == "batch":
            self.register_buffer("running_mean", torch.zeros(embedding_dim))
            self.register_buffer("running_var", torch.ones(embedding_dim))

    @takes_virtual
    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: ClassWeights | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C)."""
        weights = self.class_weights if class_weights is None else class_weights
        value = heated_up_softmax(
            embeddings, labels, weights, alpha=self.alpha, feature_norm=self.feature_norm
        )
        if self.training and self.feature_norm == "batch":
            self._track(embeddings)
        return value

    sharded_forward = forward

    @torch.no_grad()
    def _track(self, embeddings: torch.Tensor) -> None:
        """Update the running mean and variance with a batch (B, D); only for ``"batch"``."""
        _, mean_D, variance_D = normalise_batch(embeddings)
        self.running_mean.lerp_(mean_D.to(self.running_mean.dtype), _MOMENTUM)
        unbiased = len(embeddings) / max(len(embeddings) - 1, 1)
        self.running_var.lerp_(variance_D.to(self.running_var.dtype) * unbiased, _MOMENTUM)

    def evaluation_embeddings(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Normalise embeddings for evaluation, like the paper (section 4.2): as in training, then
        to length 1.

        You don't need this if the network ends in a batch norm, and is evaluated by cosine
        similarity.

        Args:
            embeddings: (N, D), any floating dtype.

        Returns:
            (N, D) in at least float32; ``"batch"`` uses the running mean and variance.
        """
        x_ND = full_precision(embeddings)
        if self.feature_norm == "batch":
            x_ND = (x_ND - self.running_mean) * (self.running_var + _EPS).rsqrt()
        return unit_rows(x_ND)

    extra_repr = show("alpha", "feature_norm")

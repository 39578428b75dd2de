"""The losses as pure functions of tensors: one file a loss, on one similarity product."""

from dml_losses.functional.instance_cross_entropy import instance_cross_entropy
from dml_losses.functional.norm_softmax import norm_softmax

__all__ = ["instance_cross_entropy", "norm_softmax"]

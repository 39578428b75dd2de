"""The class weights that a class loss starts with."""

from __future__ import annotations

import torch

from dml_losses.arguments import whole


def initial_class_weights(num_classes: int, embedding_dim: int) -> torch.nn.Parameter:
    """A parameter (num_classes, embedding_dim), uniform in ±1/√embedding_dim, as a linear layer's weights are.

    Raises:
        TypeError, ValueError: unless both are whole numbers of at least 1.
    """
    num_classes, embedding_dim = (
        whole("num_classes", num_classes, 1),
        whole("embedding_dim", embedding_dim, 1),
    )
    bound = embedding_dim**-0.5
    return torch.nn.Parameter(torch.empty(num_classes, embedding_dim).uniform_(-bound, bound))

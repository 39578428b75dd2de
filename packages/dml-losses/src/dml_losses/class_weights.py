"""The initial class weights of a class loss."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_whole


def initial_class_weights(
    num_classes: int, embedding_dim: int, *, normal: bool = False
) -> torch.nn.Parameter:
    """Draw class weights, a parameter (num_classes, embedding_dim).

    Args:
        num_classes, embedding_dim: its shape, each at least 1.
        normal: draw from a normal distribution, so that directions are uniform; otherwise from the uniform
            distribution in ±1/√embedding_dim, as a linear layer's weights.

    Raises:
        TypeError, ValueError: unless both are whole numbers of at least 1.
    """
    weights = torch.empty(
        check_whole("num_classes", num_classes, 1), check_whole("embedding_dim", embedding_dim, 1)
    )
    if normal:
        return torch.nn.Parameter(weights.normal_(std=(2 / num_classes) ** 0.5))
    bound = embedding_dim**-0.5
    return torch.nn.Parameter(weights.uniform_(-bound, bound))

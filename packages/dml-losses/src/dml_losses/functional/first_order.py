"""Operators that compute their gradient in the forward pass, so that no second derivative exists."""

from __future__ import annotations

import torch


def refuse_second_derivatives() -> None:
    """Refuse to build a graph of the backward pass, whose gradients are computed as constants.

    Raises:
        RuntimeError: if autograd would record this backward pass.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "this loss has first derivatives only, and create_graph=True asks for a graph of its backward pass; "
            "differentiate once, or use a loss of plain torch operations such as dml_losses.Softmax"
        )

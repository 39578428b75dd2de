"""Operators that compute their gradient in the forward pass, so that no second derivative exists."""

from __future__ import annotations

import torch
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd.forward_ad import unpack_dual


def refuse_transforms(*tensors: torch.Tensor) -> None:
    """Refuse forward-mode derivatives, which the operators would drop, and the derivatives of ``torch.func``.

    Raises:
        RuntimeError: if a tensor has a tangent, or the call is inside ``torch.func.grad`` or one of its relatives, or
            inside ``vmap`` with gradients enabled.
    """
    if torch.compiler.is_compiling():
        return
    inside = {transform.key() for transform in get_interpreter_stack() or ()}
    tangents = [unpack_dual(tensor).tangent for tensor in tensors]  # type: ignore[no-untyped-call]
    # Inside vmap a tensor doesn't show that a gradient is wanted outside.
    mapped = TransformType.Vmap in inside and torch.is_grad_enabled()
    if mapped or TransformType.Grad in inside or any(tangent is not None for tangent in tangents):
        raise RuntimeError(
            "this loss has reverse-mode first derivatives only, outside torch.func: use loss.backward() or "
            "torch.autograd.grad, vmap under torch.no_grad(), or a loss of plain torch operations such as "
            "dml_losses.Softmax"
        )


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

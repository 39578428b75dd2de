"""Reject derivatives that don't exist for operators whose gradient is computed without autograd."""

from __future__ import annotations

import torch
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd.forward_ad import unpack_dual


def check_no_transforms(*tensors: torch.Tensor) -> None:
    """Check that neither forward mode, which the operators would ignore, nor a ``torch.func``
    derivative is used.

    Raises:
        RuntimeError: if a tensor has a tangent, or the call is inside ``torch.func.grad`` or a
            similar transform, or inside ``vmap`` with gradients enabled.
    """
    if torch.compiler.is_compiling():
        return
    inside = {transform.key() for transform in get_interpreter_stack() or ()}
    tangents = [unpack_dual(tensor).tangent for tensor in tensors]  # type: ignore[no-untyped-call]
    # Inside vmap, a tensor doesn't show whether a gradient is needed outside.
    mapped = TransformType.Vmap in inside and torch.is_grad_enabled()
    if mapped or TransformType.Grad in inside or any(tangent is not None for tangent in tangents):
        raise RuntimeError(
            "this loss only has reverse-mode first derivatives, outside torch.func: use "
            "loss.backward() or torch.autograd.grad, vmap under torch.no_grad(), or a loss of "
            "plain torch operations such as dml_losses.Softmax"
        )


def check_no_second_derivatives() -> None:
    """Check that autograd doesn't record the backward pass, whose gradients are computed as
    constants.

    Raises:
        RuntimeError: if autograd would record this backward pass.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "this loss only has first derivatives, but create_graph=True asks for a graph of its "
            "backward pass; differentiate once, or use a loss of plain torch operations such as "
            "dml_losses.Softmax"
        )

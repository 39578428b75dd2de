"""Warn if a loss has parameters that no optimizer updates."""

from __future__ import annotations

import warnings

import torch

# More gradients than anybody accumulates for one optimizer step.
GRADIENTS = 100
# How many values to compare. After 100 gradients, an optimizer should have changed some of these
# values.
COMPARED = 4096


def expect_updates(name: str, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """Return the parameter, and warn once if it gets 100 gradients without being changed.

    The usual reason is an optimizer that only has the network's parameters. The check ends when the
    parameter changes, or after the warning. If an optimizer doesn't update autograd's version
    counter, like fused optimizers, the check compares values, which are read from the device once.
    A deep copy isn't watched.
    """
    count, version, values = 0, 0, torch.empty(0)

    def after_gradient(parameter: torch.Tensor) -> None:
        nonlocal count, version, values
        if torch.compiler.is_compiling():
            return
        count += 1
        if count == 1:
            version, values = parameter._version, _first_values(parameter).clone()
        elif parameter._version != version:
            handle.remove()
        elif count == GRADIENTS:
            handle.remove()
            first = _first_values(parameter)
            if torch.equal(first, values.to(first)):
                warnings.warn(
                    f"{name} of shape {tuple(parameter.shape)} got {count} gradients and never "
                    "changed: give the loss's parameters to the optimizer, as in "
                    f"AdamW([*network.parameters(), *loss.parameters()]); to keep {name} as it is, "
                    "call requires_grad_(False) on it",
                    stacklevel=2,
                )

    handle = parameter.register_post_accumulate_grad_hook(after_gradient)  # type: ignore[no-untyped-call]
    return parameter


def _first_values(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.detach().flatten()[:COMPARED]

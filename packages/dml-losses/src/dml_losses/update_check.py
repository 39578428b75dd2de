"""A warning for parameters of a loss that no optimizer updates."""

from __future__ import annotations

import warnings

import torch

# More gradients than anybody accumulates for one step of the optimizer.
GRADIENTS = 100
# Enough values to compare: each of them gets a gradient in some of the backward passes.
COMPARED = 4096


def expect_updates(name: str, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """Return the parameter, and warn once if it gets 100 gradients without being changed.

    The usual reason is an optimizer that has only the network's parameters. After the first change of the parameter, or
    after the warning, backward passes cost nothing more. An optimizer that writes past autograd's version counter, as
    fused ones do, is noticed by the values, which are read from the device once. A deep copy isn't watched.
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
                    f"{name} of shape {tuple(parameter.shape)} got {count} gradients and never changed: give the "
                    "loss's parameters to the optimizer, as in AdamW([*network.parameters(), *loss.parameters()]); "
                    f"to keep {name} as it is, call requires_grad_(False) on it",
                    stacklevel=2,
                )

    handle = parameter.register_post_accumulate_grad_hook(after_gradient)  # type: ignore[no-untyped-call]
    return parameter


def _first_values(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.detach().flatten()[:COMPARED]

"""Networks made for colour pictures, given pictures of any number of channels."""

from __future__ import annotations

import torch
from torch import nn


def adapt_first_convolution(network: nn.Module, in_channels: int, keep: bool) -> None:
    """Replace a network's first convolution by one for so many channels.

    Args:
        network: has a first convolution for three channels.
        in_channels: how many there are to be.
        keep: whether its weights mean something: the new ones are then their mean over the colours times
            ``3 / in_channels``, so that a grey picture gives what it gave as colour.
    """
    name, first = next((n, m) for n, m in network.named_modules() if isinstance(m, nn.Conv2d))
    new = nn.Conv2d(
        in_channels,
        first.out_channels,
        first.kernel_size,  # type: ignore[arg-type]
        first.stride,  # type: ignore[arg-type]
        first.padding,  # type: ignore[arg-type]
        bias=first.bias is not None,
    )
    if keep:
        with torch.no_grad():
            new.weight.copy_(first.weight.mean(dim=1, keepdim=True) * (3.0 / in_channels))
            if first.bias is not None and new.bias is not None:
                new.bias.copy_(first.bias)
    parent, _, attribute = name.rpartition(".")
    setattr(network.get_submodule(parent), attribute, new)

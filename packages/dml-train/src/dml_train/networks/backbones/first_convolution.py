"""Adapting networks for colour images to any number of channels."""

from __future__ import annotations

import torch
from torch import nn


def adapt_first_convolution(network: nn.Module, in_channels: int, keep: bool) -> None:
    """Replace a network's first convolution by one for `in_channels` channels.

    Args:
        network: its first convolution has three channels.
        in_channels: the new number of channels.
        keep: whether to derive the new weights from the old: their mean over the colours times ``3 / in_channels``, so
            that a grey image gives the same features as in colour. Otherwise the new weights are random.
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

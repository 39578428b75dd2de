"""The options that backbones share.

- ``in_channels``: the number of channels of the images. If it isn't 3, loaded weights of the first
  convolution are replaced by the mean over colours times ``3 / in_channels``, so that a grey image
  has the same features as in RGB.
- ``weights``: None (random) or a file: a state dict with or without the classifier,
  ``.safetensors`` or saved by ``torch.save`` (read using ``weights_only=True``, so that loading
  can't run code).
- ``levels``: the names of the outputs to use as features. If multiple, ``num_features`` and the
  output are tuples.
- ``pretrained``: whether to load ``weights``; should be False when a checkpoint will replace the
  weights.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from torch import Tensor, nn

from dml_core import DmlError, InvalidOption, nearest

Value = TypeVar("Value")


def check_levels(levels: Sequence[str], known: Sequence[str], model: str) -> None:
    """Raise an `InvalidOption` if a level is unknown (the message suggests the nearest) or given
    twice.
    """
    for level in levels:
        if level not in known:
            raise InvalidOption(
                f"backbone.levels names {level!r}; {model} has no such "
                f"level{nearest(level, known)} it has: {', '.join(known)}"
            )
    if len(set(levels)) < len(levels):
        raise InvalidOption(f"backbone.levels is {list(levels)}; expected distinct levels")


def one_or_all(values: Sequence[Value]) -> Value | tuple[Value, ...]:
    """Return a single level's value, or a tuple with a value per level."""
    return values[0] if len(values) == 1 else tuple(values)


def adapt_first_convolution(network: nn.Module, in_channels: int, keep: bool) -> None:
    """Replace a network's first convolution, for three channels, by a convolution for `in_channels`
    channels.

    If `keep`, derive the weights from the old weights; otherwise they are random.
    """
    if in_channels < 1:
        raise ValueError(f"in_channels is {in_channels}; expected at least 1")
    name, first = next((n, m) for n, m in network.named_modules() if isinstance(m, nn.Conv2d))
    sizes: Any = {
        "kernel_size": first.kernel_size,
        "stride": first.stride,
        "padding": first.padding,
    }
    new = nn.Conv2d(in_channels, first.out_channels, **sizes, bias=first.bias is not None)
    if keep:
        with torch.no_grad():
            new.weight.copy_(first.weight.mean(dim=1, keepdim=True) * (3.0 / in_channels))
            if first.bias is not None and new.bias is not None:
                new.bias.copy_(first.bias)
    network.set_submodule(name, new)


def read_state(weights: str, expected: str) -> dict[str, Tensor]:
    """Read the state dict in the file `weights`; in messages, describe the right file as
    `expected`.

    Raise an `InvalidOption` if the file doesn't exist, and a `DmlError` if the file doesn't contain
    a state dict.
    """
    file = Path(weights).expanduser()
    if not file.is_file():
        raise InvalidOption(
            f"backbone.weights is {weights!r}, but the file doesn't exist; expected {expected}"
        )
    try:
        if file.suffix == ".safetensors":
            state: Any = safetensors.torch.load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise any exception
        raise DmlError(
            f"can't read the weights {file}: {error}; expected a state dict, .safetensors or saved "
            "by torch.save"
        ) from error
    if not isinstance(state, Mapping) or not all(
        isinstance(value, Tensor) for value in state.values()
    ):
        raise DmlError(
            f"{file} contains a {type(state).__name__}; expected a state dict, tensors by "
            "parameter name"
        )
    return dict(state)


def load_state(
    network: nn.Module,
    state: Mapping[str, Tensor],
    weights: str,
    expected: str,
    unused: Callable[[str], bool],
) -> None:
    """Load a state dict into a network; raise a `DmlError` if weights are missing or unknown, or
    have a wrong shape.

    Args:
        network, state: the network, and the weights by name.
        weights, expected: the file, and a description of the right file, for messages.
        unused: returns true for names that aren't loaded, such as the classifier's; their shapes
            aren't checked.
    """
    # Old files lack batch norm's count of batches, which isn't used here.
    own = {
        n: t
        for n, t in network.state_dict().items()
        if unused(n) or n.endswith("num_batches_tracked")
    }
    try:
        network.load_state_dict(
            own | {name: tensor for name, tensor in state.items() if not unused(name)}
        )
    except RuntimeError as error:
        raise DmlError(
            f"the weights {weights} don't fit {type(network).__name__}: "
            f"{textwrap.shorten(str(error), 600)}; expected {expected}"
        ) from error

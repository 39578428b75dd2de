"""The options that backbones share: the images' channels, levels, and weights from a file."""

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
    """Refuse levels that a model doesn't have.

    Raises:
        InvalidOption: an unknown level, with the nearest known one, or a level given twice.
    """
    for level in levels:
        if level not in known:
            raise InvalidOption(
                f"backbone.levels names {level!r}; {model} has no such level{nearest(level, known)} "
                f"it has: {', '.join(known)}"
            )
    if len(set(levels)) < len(levels):
        raise InvalidOption(f"backbone.levels is {list(levels)}; expected each level once")


def one_or_all(values: Sequence[Value]) -> Value | tuple[Value, ...]:
    """Return the value of a single level, or those of several as a tuple."""
    return values[0] if len(values) == 1 else tuple(values)


def adapt_first_convolution(network: nn.Module, in_channels: int, keep: bool) -> None:
    """Replace a network's first convolution, of three channels, by one for `in_channels` channels.

    Args:
        network: the network.
        in_channels: the new number of channels.
        keep: whether to derive the new weights from the old: their mean over the colours times ``3 / in_channels``, so
            that a grey image gives the same features as in colour. Otherwise the new weights are random.

    Raises:
        ValueError: `in_channels` below 1.
    """
    if in_channels < 1:
        raise ValueError(f"in_channels is {in_channels}; expected at least 1")
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
    network.set_submodule(name, new)


def read_state(weights: str, expected: str) -> dict[str, Tensor]:
    """Read the state dict in a file, ``.safetensors`` or written by ``torch.save``; this runs no code.

    Args:
        weights: the path.
        expected: describes the values of the option ``weights``, for messages.

    Raises:
        InvalidOption: if there is no such file.
        DmlError: if the file doesn't hold a state dict.
    """
    file = Path(weights).expanduser()
    if not file.is_file():
        raise InvalidOption(
            f"backbone.weights is {weights!r}, and there is no such file; expected {expected}"
        )
    try:
        if file.suffix == ".safetensors":
            state: Any = safetensors.torch.load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises many kinds
        raise DmlError(
            f"can't read the weights {file}: {error}; expected a state dict, .safetensors or saved by torch.save"
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise DmlError(
            f"{file} holds a {type(state).__name__}; expected a state dict, tensors by parameter name"
        )
    return dict(state)


def load_state(
    network: nn.Module,
    state: Mapping[str, Tensor],
    weights: str,
    expected: str,
    unused: Callable[[str], bool],
) -> None:
    """Load a state dict into a network.

    Args:
        network: receives the weights.
        state: the weights by name.
        weights: their file, for messages.
        expected: describes the right file, for messages.
        unused: whether a name is not used here, such as the classifier's; its weights may be missing, of another size,
            or present, and are ignored.

    Raises:
        DmlError: if anything else is missing, unknown or of another shape.
    """
    # Old files lack batch norm's count of batches, which nothing here uses.
    own = {n: t for n, t in network.state_dict().items() if unused(n) or n.endswith("num_batches_tracked")}
    try:
        network.load_state_dict(own | {name: tensor for name, tensor in state.items() if not unused(name)})
    except RuntimeError as error:
        raise DmlError(
            f"the weights {weights} don't fit {type(network).__name__}: {textwrap.shorten(str(error), 600)}; "
            f"expected {expected}"
        ) from error

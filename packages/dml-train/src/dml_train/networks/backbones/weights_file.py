"""Weights from a file, for any backbone: read without running code, and refused if any of them doesn't fit."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from dml_core import DmlError, nearest


def read_state(file: Path) -> dict[str, Tensor]:
    """Read the state dict in a file, ``.safetensors`` or written by ``torch.save``.

    Raises:
        DmlError: if the file doesn't hold one.
    """
    try:
        if file.suffix == ".safetensors":
            state: Any = safetensors.torch.load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except (
        OSError,
        RuntimeError,
        EOFError,
        ValueError,
        pickle.UnpicklingError,
        safetensors.SafetensorError,
    ) as error:
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
    file: Path,
    *,
    expected: str,
    unused: Callable[[str], bool] = lambda name: False,
) -> None:
    """Load a state dict into a network, all of it or nothing.

    Args:
        network: receives the weights.
        state: the weights by name.
        file: their file, for messages.
        expected: describes the right file, for messages.
        unused: whether a name is not used here, such as the classifier's; its weights may be missing, of another size,
            or present, and are ignored.

    Raises:
        DmlError: if anything else is missing, unknown or of another shape.
    """
    wanted = {name: tensor for name, tensor in network.state_dict().items() if not unused(name)}
    given = {name: tensor for name, tensor in state.items() if not unused(name)}
    # Old files lack batch norm's count of batches, which nothing here uses.
    missing = [n for n in wanted if n not in given and not n.endswith("num_batches_tracked")]
    unknown = [n for n in given if n not in wanted]
    wrong = [n for n in wanted if n in given and wanted[n].shape != given[n].shape]
    for names, fault in ((missing, "lacks"), (unknown, "has the unknown")):
        if names:
            hint = nearest(names[0], given if fault == "lacks" else wanted)
            raise DmlError(
                f"the weights {file} don't fit {type(network).__name__}: the file {fault} {names[0]!r}{hint} "
                f"({len(names)} such names); expected {expected}"
            )
    if wrong:
        raise DmlError(
            f"the weights {file} don't fit {type(network).__name__}: {wrong[0]!r} has shape "
            f"{tuple(given[wrong[0]].shape)}; expected {tuple(wanted[wrong[0]].shape)} ({len(wrong)} such names)"
        )
    network.load_state_dict(given, strict=False)

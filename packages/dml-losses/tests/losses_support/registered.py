"""The registered losses that only need the sizes of their data, built with defaults.

Tests that iterate over these losses include new losses automatically.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import nn

from dml_losses import plugin

_SIZES = ("num_classes", "embedding_dim")


def _required(factory: Callable[..., nn.Module]) -> list[str]:
    parameters = inspect.signature(factory).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


REGISTERED: dict[str, Callable[..., nn.Module]] = {
    component.name: component.factory
    for component in plugin.dml_losses()
    if not component.name.startswith("pml/") and {*_required(component.factory)} <= {*_SIZES}
}
CLASS_LOSSES = [name for name, factory in REGISTERED.items() if "num_classes" in _required(factory)]
PAIR_LOSSES = [name for name in REGISTERED if name not in CLASS_LOSSES]


def build(name: str, num_classes: int, embedding_dim: int) -> nn.Module:
    """Build a loss with default parameters."""
    return REGISTERED[name](*(num_classes, embedding_dim) if name in CLASS_LOSSES else ())

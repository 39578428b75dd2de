"""Code that tests of several packages share; `pythonpath` in the root pyproject.toml makes it importable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def suite(contract: type[Any], make: Callable[..., Any]) -> type[Any]:
    """Return a contract's suite of the components that a factory makes.

    pytest collects it if a module has it under a name that begins with "Test".
    """
    (kind,) = contract.__abstractmethods__
    return type(contract.__name__, (contract,), {kind: lambda self, *given: make(*given)})

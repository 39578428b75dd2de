"""Code that is used by tests of multiple packages; `pythonpath` in the root pyproject.toml makes it importable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def suite(contract: type[Any], make: Callable[..., Any]) -> type[Any]:
    """Return a contract's suite of the components that a factory makes.

    pytest will collect it if it is given a name that begins with "Test" in a module.
    """
    (kind,) = contract.__abstractmethods__
    return type(contract.__name__, (contract,), {kind: lambda self, *given: make(*given)})

"""Code that is used by tests of multiple packages; `pythonpath` in the root pyproject.toml makes it
importable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def suite(contract: type[Any], make: Callable[..., Any]) -> type[Any]:
    """Make a contract's test class for the components that a factory makes.

    pytest collects the class if a module gives it a name that begins with "Test".
    """
    (kind,) = contract.__abstractmethods__
    return type(contract.__name__, (contract,), {kind: lambda self, *given: make(*given)})

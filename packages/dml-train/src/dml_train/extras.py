"""Optional packages: when a package is missing, the error names the extra of dml-train to
install.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dml_core import DmlError


class MissingExtra(DmlError):
    """An error for an optional package that isn't installed."""


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Import packages of an extra in this context; raise `MissingExtra` if an import fails.

    Args:
        name: name of the extra, for example ``"report"``.
        what: the feature that uses the packages, for the message: ``"a report"``.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtra(
            f"{what} needs {error.name or 'a package'} ({error}); install it: pip install "
            f"'dml-train[{name}]'"
        ) from error

"""A look at a worker's machine. It imports nothing of this package, since the worker may not have it."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path


def look(
    distributions: list[str], probe: str | None, token: str, seconds: float
) -> tuple[dict[str, str], bool]:
    """Return the versions of the installed ones of these distributions, and whether the probe's content is the token.

    Args:
        distributions: their names.
        probe: a file; None: there is none to see.
        token: its content.
        seconds: how long to wait for it, since network file systems may show a new file late.
    """
    import time

    versions = {}
    for name in distributions:
        try:
            versions[name] = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    if probe is None:
        return versions, True
    give_up = time.monotonic() + seconds
    while True:
        try:
            if Path(probe).read_text(encoding="ascii") == token:
                return versions, True
        except OSError:
            pass
        if time.monotonic() > give_up:
            return versions, False
        time.sleep(0.2)

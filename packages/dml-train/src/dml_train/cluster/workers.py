"""Checks of a worker before it works: the packages and the folder of the process that asks.

A worker is a process on any machine. It must have the same packages in the same versions, since another version may
give other bits or not read the same files, and must see the folder that receives the results.
"""

from __future__ import annotations

import os
import platform
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dml_core import DmlError

_SECONDS_TO_APPEAR = 10.0  # network file systems may show a new file late


class UnfitWorker(DmlError):
    """A worker has other packages, or doesn't see the shared folder."""


def find_versions(names: Iterable[str]) -> dict[str, str | None]:
    """Return the installed version of each distribution, without its local part (``2.11.0`` of ``2.11.0+cu128``)."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


@dataclass(frozen=True, slots=True)
class Expected:
    """What a worker must have.

    Args:
        versions: of distributions, by name; None: it isn't installed, and needn't be.
        probe: a file in the shared folder; None: nothing is shared.
        token: its content.
        folder: where relative paths start.
    """

    versions: Mapping[str, str | None]
    probe: Path | None
    token: str
    folder: Path

    def check(self) -> None:
        """Check this process.

        Raises:
            UnfitWorker: if it has other versions, or doesn't see the probe. Names this machine.
        """
        check_versions(self.versions, find_versions(self.versions), f"a worker on {platform.node()}")
        if self.probe is None:
            return
        deadline = time.monotonic() + _SECONDS_TO_APPEAR
        while not self._is_visible():
            if time.monotonic() > deadline:
                raise UnfitWorker(
                    f"a worker on {platform.node()} doesn't see {self.probe.parent}, where this command writes; "
                    "expected a folder that all machines share, such as one on NFS",
                    arguments=("out",),
                )
            time.sleep(0.2)

    def _is_visible(self) -> bool:
        try:
            return self.probe is None or self.probe.read_text(encoding="ascii") == self.token
        except OSError:
            return False

    def enter(self) -> None:
        """Let relative paths start where they start for the process that asks, if this machine has that folder."""
        if self.folder.is_dir():
            os.chdir(self.folder)


def check_versions(expected: Mapping[str, str | None], found: Mapping[str, str | None], worker: str) -> None:
    """Compare a worker's versions with those expected.

    Raises:
        UnfitWorker: that names the worker and the first package that differs.
    """
    for name, version in expected.items():
        if version is not None and found.get(name) != version:
            came = f"has {name} {found[name]}" if found.get(name) else f"lacks {name}"
            raise UnfitWorker(
                f"{worker} {came}; expected {version}, as here. Install the same versions on all machines"
            )


@contextmanager
def expect(distributions: Iterable[str], shared: Path | None) -> Iterator[Expected]:
    """Describe what workers must have; a probe lies in the shared folder as long as this context.

    Args:
        distributions: names of packages whose versions must agree.
        shared: the folder that all must see, made if it is missing; None: none.

    Raises:
        DmlError: if the folder can't be written.
    """
    versions, token = find_versions(distributions), secrets.token_hex(8)
    if shared is None:
        yield Expected(versions, None, token, Path.cwd())
        return
    probe = shared.absolute() / f".probe-{token}"
    try:
        shared.mkdir(parents=True, exist_ok=True)
        probe.write_text(token, encoding="ascii")
    except OSError as error:
        raise DmlError(f"can't write {probe}: {error.strerror}", arguments=("out",)) from error
    try:
        yield Expected(versions, probe, token, Path.cwd())
    finally:
        probe.unlink(missing_ok=True)

"""Checks of a worker before it works: the packages and the folder of the process that asks.

A worker is a process on any machine. It must have the same packages in the same versions, since another version may
give other bits or not read the same files, and must see the folder that receives the results.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dml_core import DmlError, Registry
from dml_train.files import report_write_errors

PROBE = ".probe-"  # how the name of a probe begins, which may lie in a new study's folder
SECONDS_TO_APPEAR = 10.0  # network file systems may show a new file late


class UnfitWorker(DmlError):
    """A worker has other packages, or doesn't see the shared folder."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a worker must have."""

    versions: Mapping[str, str]  # by distribution, without their local parts: ``2.11.0`` of ``2.11.0+cu128``
    probe: Path | None  # a file in the shared folder; None: nothing is shared
    folder: Path  # where relative paths start

    def enter(self) -> None:
        """Check the calling process, and change to `folder`; raise UnfitWorker for other versions or no probe."""
        worker = f"a worker on {platform.node()}"
        for name, version in self.versions.items():
            if (found := _find_version(name)) != version:
                came = f"lacks {name}" if found is None else f"has {name} {found}"
                raise UnfitWorker(
                    f"{worker} {came}; expected {version}, as here. Install the same versions on all machines"
                )
        if self.probe is not None and not _appears(self.probe):
            raise UnfitWorker(
                f"{worker} doesn't see {self.probe.parent}, where this command writes; "
                "expected a folder that all machines share, such as one on NFS",
                arguments=("out",),
            )
        if self.folder.is_dir():  # paths of this machine may be others
            os.chdir(self.folder)


@contextmanager
def expect(registry: Registry, shared: Path | None) -> Iterator[Expected]:
    """Describe what workers must have; a probe lies in the shared folder as long as this context.

    Workers must have the packages of the `registry`, and see the folder `shared`, made if it is missing; None: none.
    Raise DmlError if the folder can't be written.
    """
    names = {"dml-train", "torch", *(provider.distribution for provider in registry.plugins.providers)}
    versions = {name: version for name in sorted(names) if (version := _find_version(name)) is not None}
    if shared is None:
        yield Expected(versions, None, Path.cwd())
        return
    probe = shared.absolute() / f"{PROBE}{secrets.token_hex(8)}"
    with report_write_errors(f"write {probe}", arguments=("out",)):
        shared.mkdir(parents=True, exist_ok=True)
        probe.touch()
    try:
        yield Expected(versions, probe, Path.cwd())
    finally:
        probe.unlink(missing_ok=True)


def refuse_missing_package(error: Exception) -> None:
    """Raise UnfitWorker if an error names a package that a worker lacks, so that it can't even load its call."""
    if missing := re.search(r"No module named '([\w.]+)'", str(error)):
        raise UnfitWorker(
            f"a worker lacks the package {missing[1]}; install the same packages on all machines"
        ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that isn't empty, or else the name of its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _find_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def _appears(probe: Path) -> bool:
    give_up = time.monotonic() + SECONDS_TO_APPEAR
    while not probe.is_file():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.2)
    return True

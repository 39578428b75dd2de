"""Check workers, which are processes on any machine, before they work.

A worker must have the same versions of packages, since a different version may compute different
bits or not read the files, and must see the folder that receives the results.
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

PROBE = ".probe-"  # prefix of a probe file (see `expect`), which a new study's folder may contain
SECONDS_TO_APPEAR = 10.0  # network file systems may show a new file late


class UnfitWorker(DmlError):
    """A worker whose packages differ, or that doesn't see the shared folder."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The requirements for workers."""

    versions: Mapping[
        str, str
    ]  # by distribution; local parts are removed: ``2.11.0`` for ``2.11.0+cu128``
    probe: Path | None  # a file in the shared folder; None if no folder is shared
    folder: Path  # the current folder, where relative paths start

    def enter(self) -> None:
        """Check this process, and change to `folder`; raise UnfitWorker for a wrong version or a
        missing probe.
        """
        worker = f"a worker on {platform.node()}"
        for name, version in self.versions.items():
            if (found := _find_version(name)) != version:
                came = f"lacks {name}" if found is None else f"has {name} {found}"
                raise UnfitWorker(
                    f"{worker} {came}; expected {version}, as here. Install identical versions on "
                    "all machines"
                )
        give_up = time.monotonic() + SECONDS_TO_APPEAR
        while self.probe is not None and not self.probe.is_file():
            if time.monotonic() > give_up:
                raise UnfitWorker(
                    f"{worker} doesn't see {self.probe.parent}, where this command writes; "
                    "expected a folder that all machines share, for example on NFS",
                    arguments=("out",),
                )
            time.sleep(0.2)
        if self.folder.is_dir():  # paths on this machine may differ
            os.chdir(self.folder)


@contextmanager
def expect(registry: Registry, shared: Path | None) -> Iterator[Expected]:
    """Yield the requirements: the packages of the `registry` and, if given, a probe in the folder
    `shared`.

    The folder will be created if missing; raise DmlError if it can't be written. When this context
    ends, the probe is removed.
    """
    names = {
        "dml-train",
        "torch",
        *(provider.distribution for provider in registry.plugins.providers),
    }
    versions = {
        name: version for name in sorted(names) if (version := _find_version(name)) is not None
    }
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


def check_missing_package(error: Exception) -> None:
    """Raise UnfitWorker if the error of a worker says that it lacks a package and couldn't even
    load the call.
    """
    if missing := re.search(r"No module named '([\w.]+)'", str(error)):
        raise UnfitWorker(
            f"a worker lacks the package {missing[1]}; install it on all machines"
        ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that isn't empty, or the name of the error's
    type.
    """
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )


def _find_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None

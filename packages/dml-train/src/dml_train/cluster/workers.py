"""Checks of a worker before it works: the packages and the folder of the process that asks.

A worker is a process on any machine. It must have the same packages in the same versions, since another version may
give other bits or not read the same files, and must see the folder that receives the results.
"""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dml_core import DmlError
from dml_train.cluster.probe import look

PROBE = ".probe-"  # how the name of a probe begins, which may lie in a new study's folder
SECONDS_TO_APPEAR = 10.0  # network file systems may show a new file late


class UnfitWorker(DmlError):
    """A worker has other packages, or doesn't see the shared folder."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a worker must have.

    Args:
        versions: of distributions, by name, without their local parts: ``2.11.0`` of ``2.11.0+cu128``.
        probe: a file in the shared folder; None: nothing is shared.
        token: its content.
        folder: where relative paths start.
    """

    versions: Mapping[str, str]
    probe: Path | None
    token: str
    folder: Path

    def check_this_process(self) -> None:
        """Check the process that calls.

        Raises:
            UnfitWorker: if it has other versions, or doesn't see the probe. Names this machine.
        """
        self.check(f"a worker on {platform.node()}", *look(*self.questions()))

    def questions(self) -> tuple[list[str], str | None, str, float]:
        """Return the arguments of `look`."""
        probe = None if self.probe is None else str(self.probe)
        return list(self.versions), probe, self.token, SECONDS_TO_APPEAR

    def check(self, worker: str, versions: Mapping[str, str], sees_probe: bool) -> None:
        """Compare what `look` returned on a worker.

        Raises:
            UnfitWorker: that names the worker and the first package that differs.
        """
        for name, version in self.versions.items():
            if (found := versions.get(name)) != version:
                came = f"lacks {name}" if found is None else f"has {name} {found}"
                raise UnfitWorker(
                    f"{worker} {came}; expected {version}, as here. Install the same versions on all machines"
                )
        if self.probe is not None and not sees_probe:
            raise UnfitWorker(
                f"{worker} doesn't see {self.probe.parent}, where this command writes; "
                "expected a folder that all machines share, such as one on NFS",
                arguments=("out",),
            )

    def enter(self) -> None:
        """Let relative paths start where they start for the process that asks, if this machine has that folder."""
        if self.folder.is_dir():
            os.chdir(self.folder)


@contextmanager
def expect(distributions: Iterable[str], shared: Path | None) -> Iterator[Expected]:
    """Describe what workers must have; a probe lies in the shared folder as long as this context.

    Args:
        distributions: names of packages whose versions must agree; those that aren't installed here don't count.
        shared: the folder that all must see, made if it is missing; None: none.

    Raises:
        DmlError: if the folder can't be written.
    """
    token = secrets.token_hex(8)
    versions, _ = look(sorted(distributions), None, token, 0.0)
    if shared is None:
        yield Expected(versions, None, token, Path.cwd())
        return
    probe = shared.absolute() / f"{PROBE}{token}"
    try:
        shared.mkdir(parents=True, exist_ok=True)
        probe.write_text(token, encoding="ascii")
    except OSError as error:
        raise DmlError(f"can't write {probe}: {error.strerror}", arguments=("out",)) from error
    try:
        yield Expected(versions, probe, token, Path.cwd())
    finally:
        probe.unlink(missing_ok=True)

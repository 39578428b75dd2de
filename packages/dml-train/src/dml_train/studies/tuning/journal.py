"""The journal of a search: Optuna's log of trials, one JSON object a line, in a file that several processes share.

Optuna's own file locks by another file, which a killed process leaves behind, and appends to a line that a full disk
has cut, after which the journal can't be read. Here a lock ends with its process, and a cut line is dropped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dml_core import DmlError
from dml_train.files import WriteRefused
from dml_train.locks import hold_lock


class Journal:
    """A backend of ``optuna.storages.JournalStorage``.

    Args:
        path: the file; created if it is missing. An incomplete last line is dropped: its write was interrupted.

    Raises:
        DmlError: if the file is corrupt, or can't be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = path.with_name(f".{path.name}.lock")
        self._size = 0
        self._logs: list[dict[str, Any]] = []
        self._read()

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        """Return the logs from this number on, also those of other processes."""
        self._read()
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append logs, and sync the file.

        Raises:
            WriteRefused: if the disk is full or refuses.
        """
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        try:
            with hold_lock(self._lock, wait=True):
                self._read()
                with self._path.open("r+b" if self._path.exists() else "wb") as file:
                    file.truncate(self._size)
                    file.seek(self._size)
                    file.write(lines)
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise WriteRefused(
                f"can't write {self._path}: {error.strerror}; finished trials are kept. Solve that, then repeat "
                "the command"
            ) from error
        self._size += len(lines)
        self._logs += map(json.loads, lines.splitlines())

    def _read(self) -> None:
        """Read the complete lines that were added since."""
        if not self._path.exists():
            return
        try:
            with self._path.open("rb") as file:
                file.seek(self._size)
                content = file.read()
            complete = content[: content.rfind(b"\n") + 1]
            self._logs += [json.loads(line) for line in complete.splitlines()]
        except (OSError, ValueError, RecursionError) as error:
            raise DmlError(f"{self._path} is corrupt: {error}") from error
        self._size += len(complete)

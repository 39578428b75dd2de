"""What every tracker needs: the identity of its run, kept in the run's folder, and the recipe as flat settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dml_core import DmlError
from dml_train.files import read_json, write_json
from dml_train.run_folder import RunFolder, Tracker

PROJECT = "dml"  # the default project of every tracker


def identify(directory: Path, tracker: Tracker, create: Callable[[], dict[str, str]]) -> dict[str, str]:
    """Return the identity of a run in a tracker: the one in the run's folder, or else a new one, saved there.

    Args:
        directory: the run's folder.
        tracker: the tracker's name.
        create: makes an identity, such as ``{"id": "4f7a", "project": "dml"}``.

    Raises:
        DmlError: if the file is corrupt or can't be written.
    """
    path = RunFolder(directory).tracker(tracker)
    if path.is_file():
        return read_json(path)
    identity = create()
    write_json(path, identity)
    return identity


def flatten_settings(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Give each setting of a recipe its path, ``loss.temperature``; a list becomes JSON text."""
    flat: dict[str, Any] = {}
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            flat |= flatten_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list) else value
    return flat


@contextmanager
def refusals_of(tracker: Tracker, path: Path) -> Iterator[None]:
    """Turn a tracker's errors, of whatever class, into a `DmlError` that names the logger.

    Args:
        tracker: the tracker's name.
        path: the file of the run's identity, named in the message.
    """
    try:
        yield
    except DmlError:
        raise
    except Exception as error:
        raise DmlError(
            f"the logger {tracker!r} can't start: {type(error).__name__}: {error}. Correct its options in "
            f"logging.loggers, or remove {path} to log to a new run"
        ) from error

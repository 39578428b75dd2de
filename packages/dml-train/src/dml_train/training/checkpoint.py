"""Checkpoints: written under a temporary name, synced, then renamed; checksums tell a corrupt one from an intact one.

A checkpoint is a folder ``step-00001000`` with

- ``model.safetensors``: the weights of backbone and head, readable by other programs;
- ``state.pt``: the rest of what a resumed run needs, read with ``weights_only=True``, so that loading runs no code.
  Its bytes depend on the values alone, so a resumed run writes those of an uninterrupted one;
- ``manifest.json``: the step, and size and SHA-256 of the other two files. It is written last.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from dml_core import DmlError
from dml_train.files import WriteRefused

WEIGHTS, STATE, MANIFEST = "model.safetensors", "state.pt", "manifest.json"
_FOLDER = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An intact checkpoint: its files have the checksums of its manifest."""

    step: int
    path: Path

    def weights(self) -> dict[str, Tensor]:
        """Read the weights of backbone and head, by parameter name, on the CPU.

        Raises:
            DmlError: if the file isn't one of weights, although its checksum is right.
        """
        try:
            return safetensors.torch.load_file(self.path / WEIGHTS)
        except (safetensors.SafetensorError, OSError, ValueError, RecursionError) as error:
            raise DmlError(f"{self.path / WEIGHTS} holds no weights: {error}") from error

    def load_into(self, network: nn.Module) -> None:
        """Load the weights into a network.

        Raises:
            DmlError: if they aren't those of such a network.
        """
        try:
            network.load_state_dict(self.weights())
        except RuntimeError as error:
            raise DmlError(
                f"the weights in {self.path} aren't those of the run's recipe: {str(error).splitlines()[-1].strip()}"
            ) from error

    def state(self, *, mapped: bool = False) -> dict[str, Any]:
        """Read the rest of the state, on the CPU; with `mapped`, tensors take memory only once they are read.

        Raises:
            DmlError: if the file isn't one of a state, although its checksum is right.
        """
        file = self.path / STATE
        try:
            state = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
        except pickle.UnpicklingError as error:
            raise DmlError(
                f"{file} holds more than tensors and plain values, so it was not loaded: {error}"
            ) from error
        except Exception as error:  # torch raises errors of many kinds for a file that isn't its own
            raise DmlError(f"{file} holds no state of a run: {type(error).__name__}: {error}") from error
        if not isinstance(state, dict):
            raise DmlError(f"{file} holds no state of a run: it is a {type(state).__name__}")
        return state

    def best_step(self) -> int:
        """Return the step of the best weights so far; 0 if the run selects none.

        Raises:
            DmlError: as `state`.
        """
        best = self.state().get("best")
        if not isinstance(best, Mapping) or not isinstance(best.get("step"), int):
            raise DmlError(f"{self.path / STATE} holds no state of a run: it doesn't say which step was best")
        return int(best["step"])


def write(folder: Path, step: int, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> Checkpoint:
    """Write a checkpoint: at every moment its name holds all of it or nothing.

    Args:
        folder: the run's folder of checkpoints; created if it is missing.
        step: optimizer steps done.
        weights: of backbone and head.
        state: nested dicts, lists and tuples of tensors, numbers, strings and None.

    Raises:
        WriteRefused: if the disk is full or refuses, with the newest checkpoint that is intact.
    """
    final = folder / _name(step)
    partial = folder / _partial(final.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for remains in folder.glob(
            _partial("*")
        ):  # of killed writes, perhaps of steps that are not saved again
            shutil.rmtree(remains, ignore_errors=True)
        partial.mkdir()
        # safetensors refuses tensors that share memory: copy each.
        safetensors.torch.save_file(
            {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()},
            partial / WEIGHTS,
        )
        torch.save(_without_identities(state), partial / STATE)
        files = {name: {"bytes": (partial / name).stat().st_size, "sha256": _sha256(partial / name)}
                 for name in (WEIGHTS, STATE)}  # fmt: skip
        (partial / MANIFEST).write_text(json.dumps({"step": step, "files": files}, indent=2) + "\n")
        for name in (WEIGHTS, STATE, MANIFEST):
            _sync(partial / name)
        _sync(partial)
        if final.exists():  # a corrupt one, whose step a resumed run has reached again
            shutil.rmtree(final)
        partial.rename(final)
        _sync(folder)
    # safetensors and torch raise errors of their own for a full disk; torch's doesn't name the cause.
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        free = shutil.disk_usage(folder).free >> 20 if folder.exists() else 0
        shutil.rmtree(partial, ignore_errors=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) if isinstance(error, OSError) else not free
        raise WriteRefused(
            f"can't save the checkpoint of step {step} in {folder}: "
            f"{'the disk is full' if full else error} ({free} MiB free); {describe_newest(folder)}. "
            f"{'Free some space' if full else 'Solve that'}, then resume the run",
            arguments=("resume",),
        ) from error
    return Checkpoint(step, final)


def newest_intact(folder: Path) -> Checkpoint | None:
    """Find the newest intact checkpoint; None if there is none."""
    return next(intact(folder), None)


def of_step(folder: Path, step: int) -> Checkpoint:
    """Find the checkpoint of a step.

    Raises:
        DmlError: if it is corrupt or missing.
    """
    path = folder / _name(step)
    if (wrong := fault(path)) is not None:
        raise DmlError(f"can't load the weights of the checkpoint {path}: {wrong}")
    return Checkpoint(step, path)


def intact(folder: Path) -> Iterator[Checkpoint]:
    """Yield the intact checkpoints, newest first."""
    for step, path in _by_step(folder):
        if fault(path) is None:
            yield Checkpoint(step, path)


def corrupt(folder: Path) -> dict[Path, str]:
    """Find the corrupt checkpoints newer than the newest intact one, each with its fault."""
    found: dict[Path, str] = {}
    for _, path in _by_step(folder):
        wrong = fault(path)
        if wrong is None:
            break
        found[path] = wrong
    return found


def fault(path: Path) -> str | None:
    """Say what is wrong with a checkpoint's folder; None if it is intact."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if path.name != _name(manifest["step"]):
            return f"{MANIFEST} is of step {manifest['step']}"
        for name in (WEIGHTS, STATE):
            expected = manifest["files"][name]
            if (size := (path / name).stat().st_size) != expected["bytes"]:
                return f"{name} has {size} bytes; the manifest says {expected['bytes']}"
            if _sha256(path / name) != expected["sha256"]:
                return f"{name} has another SHA-256 than the manifest says"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except PermissionError:  # it may be intact, and resuming from an older one would delete it
        raise
    except OSError as error:  # a failing disk
        return f"reading it failed: {error.strerror}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{MANIFEST} is corrupt"
    return None


def prune(folder: Path, keep: int, protected: Collection[int] = ()) -> None:
    """Remove all checkpoints but the newest `keep` and the `protected` steps, and those without a manifest."""
    kept = 0
    for step, path in _by_step(folder):
        # A manifest counts as intact here: hashing all files at each save would cost more than saving.
        if (path / MANIFEST).exists():
            kept += 1
            if kept <= keep or step in protected:
                continue
        shutil.rmtree(path)


def describe_newest(folder: Path) -> str:
    """Name the newest intact checkpoint, for the message of a run that fails."""
    newest = newest_intact(folder)
    return (
        f"the checkpoint of step {newest.step} ({newest.path}) is intact"
        if newest
        else "there is no checkpoint yet"
    )


def _without_identities(value: Any) -> Any:
    """Rebuild a tree of dicts, lists and tuples, so that the bytes of its pickle depend on its values alone.

    Pickle stores an object that it has seen before as a reference. A loaded state shares other strings and tuples than
    the state that was saved. In the result, equal strings are one object, and no dict, list or tuple occurs twice.
    Tensors stay: which of them share memory depends on the code, not on the run's history.
    """
    if type(value) is str:
        return sys.intern(value)
    if isinstance(value, Mapping):
        return {_without_identities(key): _without_identities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_without_identities(item) for item in value)
    return value


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _partial(name: str) -> str:
    return f".{name}.partial"


def _by_step(folder: Path) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        return []
    found = [
        (int(match[1]), path)
        for path in folder.iterdir()
        if (match := _FOLDER.fullmatch(path.name)) and path.is_dir()
    ]
    return sorted(found, reverse=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

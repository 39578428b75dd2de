"""Checkpoints: written under a temporary name, synced, then renamed; checksums tell a corrupt one from an intact one.

A checkpoint is a folder ``step-00001000`` with

- ``model.safetensors``: the weights of backbone and head, readable by other programs;
- ``state.pt``: the rest of what a resumed run needs, read with ``weights_only=True``, so that loading runs no code.
  Its bytes depend on the values alone, so a resumed run writes those of an uninterrupted one;
- ``parts/``, if ranks share tensors: a file for each rank with its rows (`dml_train.ranks.parts`); the state has
  placeholders for these tensors;
- ``manifest.json``: the step, and size and SHA-256 of the other files. It is written last.

Any number of ranks loads a checkpoint.
"""

from __future__ import annotations

import errno
import json
import pickle
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from dml_core import DmlError
from dml_train.checksums import FileRecord, compare, record_of
from dml_train.files import WriteRefused, sync
from dml_train.ranks.parts import SUFFIX, OwnRows, Parts, part_name, write_part
from dml_train.ranks.ranks import SINGLE_PROCESS, Ranks

WEIGHTS, STATE, MANIFEST, PARTS = "model.safetensors", "state.pt", "manifest.json", "parts"
_FOLDER = re.compile(r"step-(\d{8,})")
_PART = re.compile(rf"{PARTS}/[\w-]+{re.escape(SUFFIX)}")
# safetensors and torch raise errors of their own for a full disk; torch's doesn't name the cause.
_REFUSALS = (OSError, RuntimeError, safetensors.SafetensorError)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An intact checkpoint: its files have the checksums of its manifest."""

    step: int
    path: Path

    def parts(self) -> Parts:
        """Open the rows for which placeholders stand in the state.

        Raises:
            DmlError: if a file isn't such a part, although its checksum is right.
        """
        return Parts(self.path / PARTS)

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

        Tensors that ranks share are placeholders for the rows that `parts` reads.

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
        best = self.state(mapped=True).get("best")
        if not isinstance(best, Mapping) or not isinstance(best.get("step"), int):
            raise DmlError(f"{self.path / STATE} holds no state of a run: it doesn't say which step was best")
        return int(best["step"])


def read_manifest(folder: Path) -> dict[str, FileRecord]:
    """Read the files of a checkpoint from its manifest, which exists and is intact."""
    files: dict[str, FileRecord] = json.loads((folder / MANIFEST).read_text())["files"]
    return files


def newest_intact(folder: Path) -> Checkpoint | None:
    """Find the newest intact checkpoint; None if there is none."""
    return next(intact(folder), None)


def newest_step(folder: Path) -> int:
    """Return the step of the newest checkpoint, intact or not; 0 if there is none."""
    return next((step for step, _ in _by_step(folder)), 0)


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
        files = manifest["files"]
        parts = [name for name in files if name not in (WEIGHTS, STATE)]
        if not all(map(_PART.fullmatch, parts)):
            return f"{MANIFEST} lists unknown files"
        for name in (WEIGHTS, STATE, *parts):
            if (wrong := compare(path / name, files[name])) is not None:
                return f"{name} {wrong}"
        for file in (path / PARTS).glob(f"*{SUFFIX}"):
            if f"{PARTS}/{file.name}" not in files:
                return f"{PARTS}/{file.name} isn't in the manifest"
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


def write(
    folder: Path,
    step: int,
    weights: Mapping[str, Tensor],
    state: Mapping[str, Any],
    rows: Mapping[str, OwnRows] | None = None,
    ranks: Ranks = SINGLE_PROCESS,
) -> Checkpoint:
    """Write a checkpoint: at every moment its name holds all of it or nothing. Every rank must call it.

    Args:
        folder: the run's folder of checkpoints, which all ranks share; created if it is missing.
        step: optimizer steps done.
        weights: of backbone and head; the first rank writes them.
        state: nested dicts, lists and tuples of tensors, numbers, strings and None; the first rank writes it.
        rows: this rank's rows of the tensors for which `state` has placeholders, by their path in it.
        ranks: those that have the rows.

    Raises:
        WriteRefused: on every rank, if a disk is full or refuses; it names the newest checkpoint that is intact.
    """
    final = folder / _name(step)
    partial = folder / f".{final.name}.partial"

    def begin() -> None:
        with _refusals(folder, step, partial):
            # Killed writes leave some, perhaps of steps that are not saved again.
            for remains in folder.glob(".*.partial"):
                shutil.rmtree(remains, ignore_errors=True)
            (partial / PARTS if rows else partial).mkdir(parents=True)

    def complete() -> None:
        with _refusals(folder, step, partial):
            if refused := [outcome for outcome in outcomes if isinstance(outcome, OSError)]:
                raise refused[0]
            parts = dict(outcome for outcome in outcomes if isinstance(outcome, tuple))
            _complete(partial, final, step, weights, state, parts)

    ranks.run_on_first(begin)
    outcomes = ranks.gather_object(_write_rows(partial, rows, ranks) if rows else None)
    ranks.run_on_first(complete)
    return Checkpoint(step, final)


def _write_rows(partial: Path, rows: Mapping[str, OwnRows], ranks: Ranks) -> tuple[str, FileRecord] | OSError:
    """Write this rank's rows; return the name and entry of their file, or the error by which the disk refused.

    It isn't raised here, since the other ranks would wait for this one.
    """
    name = f"{PARTS}/{part_name(ranks.rank, ranks.world_size)}"
    try:
        return name, write_part(partial / name, rows)
    except _REFUSALS as error:
        return error if isinstance(error, OSError) else OSError(str(error))


def _complete(
    partial: Path,
    final: Path,
    step: int,
    weights: Mapping[str, Tensor],
    state: Mapping[str, Any],
    parts: Mapping[str, FileRecord],
) -> None:
    """Write what all ranks have in common, the manifest last, and rename the folder."""
    # safetensors refuses tensors that share memory: copy each.
    safetensors.torch.save_file(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()},
        partial / WEIGHTS,
    )
    for name, record in parts.items():
        if not (partial / name).is_file() or (partial / name).stat().st_size != record["bytes"]:
            raise OSError(f"{name} of another rank isn't here; expected a folder that all ranks share")
    torch.save(_without_identities(state), partial / STATE)
    files = {WEIGHTS: record_of(partial / WEIGHTS), STATE: record_of(partial / STATE), **parts}
    (partial / MANIFEST).write_text(json.dumps({"step": step, "files": files}, indent=2) + "\n")
    for written in (WEIGHTS, STATE, *([PARTS] if parts else []), MANIFEST, ""):
        sync(partial / written)
    if final.exists():  # a corrupt one, whose step a resumed run has reached again
        shutil.rmtree(final)
    partial.rename(final)
    sync(final.parent)


@contextmanager
def _refusals(folder: Path, step: int, partial: Path) -> Iterator[None]:
    """Raise WriteRefused for what a disk refuses, and remove the partial checkpoint."""
    try:
        yield
    except _REFUSALS as error:
        free = shutil.disk_usage(folder).free >> 20 if folder.exists() else 0
        shutil.rmtree(partial, ignore_errors=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) if isinstance(error, OSError) else not free
        raise WriteRefused(
            f"can't save the checkpoint of step {step} in {folder}: "
            f"{'the disk is full' if full else error} ({free} MiB free); {describe_newest(folder)}. "
            f"{'Free some space' if full else 'Solve that'}, then resume the run",
            arguments=("resume",),
        ) from error


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


def _by_step(folder: Path) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        return []
    found = [
        (int(match[1]), path)
        for path in folder.iterdir()
        if (match := _FOLDER.fullmatch(path.name)) and path.is_dir()
    ]
    return sorted(found, reverse=True)

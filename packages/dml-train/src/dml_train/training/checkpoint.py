"""Checkpoints: written under a temporary name, synced, then renamed; checksums detect corruption.

A checkpoint is a folder ``step-00001000`` with

- ``model.safetensors``: the weights of backbone and head, readable by other programs;
- ``state.pt``: the remaining state that a resumed run needs, read with ``weights_only=True``, so
  that loading can't run code. The bytes depend only on the values, so a resumed run writes a file
  identical to an uninterrupted run;
- ``parts/``, if ranks share tensors: a file per rank with the rank's rows
  (`dml_train.ranks.parts`); the state contains placeholders for these tensors;
- ``manifest.json``, written last: the step, and size and SHA-256 of the other files.

A checkpoint can be loaded with any number of ranks.
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
# If the disk is full, safetensors and torch raise their own errors instead of an OSError; torch's
# doesn't say why.
_WRITE_ERRORS = (OSError, RuntimeError, safetensors.SafetensorError)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An intact checkpoint: the files match the checksums in the manifest."""

    step: int
    path: Path

    def parts(self) -> Parts:
        """Open the rows that replace the placeholders in the state; raise a `DmlError` if a file
        isn't a part.
        """
        return Parts(self.path / PARTS)

    def weights(self) -> dict[str, Tensor]:
        """Read the weights of backbone and head by name, on the CPU; raise a `DmlError` if weights
        are missing.
        """
        try:
            return safetensors.torch.load_file(self.path / WEIGHTS)
        except (safetensors.SafetensorError, OSError, ValueError, RecursionError) as error:
            raise DmlError(f"{self.path / WEIGHTS} doesn't contain weights: {error}") from error

    def load_into(self, network: nn.Module) -> None:
        """Load the weights into a network; raise a `DmlError` if the names or shapes don't
        match.
        """
        try:
            network.load_state_dict(self.weights())
        except RuntimeError as error:
            raise DmlError(
                f"the weights in {self.path} don't match the run's recipe: "
                f"{str(error).splitlines()[-1].strip()}"
            ) from error

    def state(self, *, mapped: bool = False) -> dict[str, Any]:
        """Read the remaining state, on the CPU; with `mapped`, tensors take memory only when they
        are read.

        Tensors that ranks share are placeholders; use `parts` to read the rows. Raise a `DmlError`
        if the file lacks this state.
        """
        file = self.path / STATE
        try:
            state = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
        except pickle.UnpicklingError as error:
            raise DmlError(
                f"{file} contains more than tensors and plain values, so it was not loaded: {error}"
            ) from error
        except Exception as error:  # torch can raise any exception for a file that it didn't write
            raise DmlError(
                f"{file} lacks a run's state: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(state, dict):
            raise DmlError(f"{file} lacks a run's state: it is a {type(state).__name__}")
        return state

    def best_step(self) -> int:
        """Return the step of the best weights so far, 0 if the run doesn't select weights, or raise
        as `state`.
        """
        best = self.state(mapped=True).get("best")
        if not isinstance(best, Mapping) or not isinstance(best.get("step"), int):
            raise DmlError(
                f"{self.path / STATE} lacks a run's state: it doesn't say which step was best"
            )
        return int(best["step"])


def read_manifest(folder: Path) -> dict[str, FileRecord]:
    """Read the list of files from a checkpoint's manifest, which must be intact."""
    files: dict[str, FileRecord] = json.loads((folder / MANIFEST).read_text())["files"]
    return files


def newest_intact(folder: Path) -> Checkpoint | None:
    """Find the newest intact checkpoint; None if there is none."""
    return next(intact(folder), None)


def newest_step(folder: Path) -> int:
    """Return the step of the newest checkpoint, intact or not; 0 if there is none."""
    return next((step for step, _ in _by_step(folder)), 0)


def find_step(folder: Path, step: int) -> Checkpoint:
    """Find the checkpoint of the given step; raise a `DmlError` if it is corrupt or missing."""
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
    """Find corrupt checkpoints that are newer than the newest intact checkpoint; return the faults
    by path.
    """
    found: dict[Path, str] = {}
    for _, path in _by_step(folder):
        wrong = fault(path)
        if wrong is None:
            break
        found[path] = wrong
    return found


def fault(path: Path) -> str | None:
    """Describe the fault in a checkpoint's folder; None if it is intact."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if path.name != _name(manifest["step"]):
            return f"{MANIFEST} was written for step {manifest['step']}"
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
    except (
        PermissionError
    ):  # the checkpoint may be intact, and resuming from an older one would delete it
        raise
    except OSError as error:  # a failing disk
        return f"reading it failed: {error.strerror}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{MANIFEST} is corrupt"
    return None


def prune(folder: Path, keep: int, protected: Collection[int] = ()) -> None:
    """Remove checkpoints that lack a manifest, and all others except the newest `keep` and the
    `protected` steps.
    """
    kept = 0
    for step, path in _by_step(folder):
        # Note that checksums are not verified here: hashing all files on every save would be slower
        # than saving.
        if (path / MANIFEST).exists():
            kept += 1
            if kept <= keep or step in protected:
                continue
        shutil.rmtree(path)


def describe_newest(folder: Path) -> str:
    """Describe the newest intact checkpoint, to include in the error of a failed run."""
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
    """Write a checkpoint atomically: the folder is either complete or absent. Every rank must call
    this function.

    On every rank, raise `WriteRefused` if a disk is full or fails; the message names the newest
    intact checkpoint.

    Args:
        folder: the run's folder of checkpoints, which all ranks must share; created if missing.
        step: number of optimizer steps done.
        weights: weights of backbone and head; written by the first rank.
        state: nested dicts, lists and tuples of tensors, numbers, strings and None; written by the
            first rank.
        rows: this rank's rows of the tensors that are placeholders in `state`, by path.
        ranks: the ranks that have the rows.
    """
    final = folder / _name(step)
    partial = folder / f".{final.name}.partial"

    def begin() -> None:
        with _report_write_errors(folder, step, partial):
            # A killed process leaves a partial folder, perhaps of a step that isn't saved again.
            for remains in folder.glob(".*.partial"):
                shutil.rmtree(remains, ignore_errors=True)
            (partial / PARTS if rows else partial).mkdir(parents=True)

    def complete() -> None:
        with _report_write_errors(folder, step, partial):
            if refused := [outcome for outcome in outcomes if isinstance(outcome, OSError)]:
                raise refused[0]
            parts = dict(outcome for outcome in outcomes if isinstance(outcome, tuple))
            _complete(partial, final, step, weights, state, parts)

    ranks.run_on_first(begin)
    outcomes = ranks.gather_object(_write_rows(partial, rows, ranks) if rows else None)
    ranks.run_on_first(complete)
    return Checkpoint(step, final)


def _write_rows(
    partial: Path, rows: Mapping[str, OwnRows], ranks: Ranks
) -> tuple[str, FileRecord] | OSError:
    """Write this rank's rows; return the file's name and manifest entry, or the error when writing
    failed.

    An error isn't raised here, since the other ranks would wait for this rank.
    """
    name = f"{PARTS}/{part_name(ranks.rank, ranks.world_size)}"
    try:
        return name, write_part(partial / name, rows)
    except _WRITE_ERRORS as error:
        return error if isinstance(error, OSError) else OSError(str(error))


def _complete(
    partial: Path,
    final: Path,
    step: int,
    weights: Mapping[str, Tensor],
    state: Mapping[str, Any],
    parts: Mapping[str, FileRecord],
) -> None:
    """Write the files that all ranks share, the manifest last, and rename the folder."""
    # safetensors raises an error if tensors share memory, so copy all tensors.
    safetensors.torch.save_file(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()},
        partial / WEIGHTS,
    )
    for name, record in parts.items():
        if not (partial / name).is_file() or (partial / name).stat().st_size != record["bytes"]:
            raise OSError(
                f"{name}, written on a different rank, is missing; expected a folder that all "
                "ranks share"
            )
    torch.save(_without_identities(state), partial / STATE)
    files = {WEIGHTS: record_of(partial / WEIGHTS), STATE: record_of(partial / STATE), **parts}
    (partial / MANIFEST).write_text(json.dumps({"step": step, "files": files}, indent=2) + "\n")
    for written in (WEIGHTS, STATE, *([PARTS] if parts else []), MANIFEST, ""):
        sync(partial / written)
    if final.exists():  # it was corrupt, so the run resumed from an older checkpoint
        shutil.rmtree(final)
    partial.rename(final)
    sync(final.parent)


@contextmanager
def _report_write_errors(folder: Path, step: int, partial: Path) -> Iterator[None]:
    """Turn write errors into WriteRefused, and remove the partial checkpoint."""
    try:
        yield
    except _WRITE_ERRORS as error:
        free = shutil.disk_usage(folder).free >> 20 if folder.exists() else 0
        shutil.rmtree(partial, ignore_errors=True)
        full = (
            error.errno in (errno.ENOSPC, errno.EDQUOT) if isinstance(error, OSError) else not free
        )
        raise WriteRefused(
            f"can't save the checkpoint of step {step} in {folder}: "
            f"{'the disk is full' if full else error} ({free} MiB free); "
            f"{describe_newest(folder)}. {'Free some space' if full else 'Correct this'}, then "
            "resume the run",
            arguments=("resume",),
        ) from error


def _without_identities(value: Any) -> Any:
    """Rebuild a tree of dicts, lists and tuples, so that pickled bytes depend only on the values.

    Pickle stores a repeated object as a reference, and a loaded state shares different strings and
    tuples than the saved state. In the result, equal strings are one object, and dicts, lists and
    tuples aren't repeated. Tensors don't change: which tensors share memory depends on the code,
    not on the run's history.
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

"""Writing of checkpoints: under a temporary name, synced, then renamed, so that a killed write leaves none."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from dml_train.checksums import FileRecord, record_of
from dml_train.files import WriteRefused, sync
from dml_train.ranks.ranks import SINGLE_PROCESS, Ranks
from dml_train.ranks.sharding import OwnRows
from dml_train.training.checkpoint import (
    MANIFEST,
    PARTS,
    STATE,
    STATE_OF_PARTS,
    WEIGHTS,
    Checkpoint,
    describe_newest,
    name_of,
    partial_name,
)
from dml_train.training.parts import part_name, write_part

# safetensors and torch raise errors of their own for a full disk; torch's doesn't name the cause.
_REFUSALS = (OSError, RuntimeError, safetensors.SafetensorError)


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
    final = folder / name_of(step)
    partial = folder / partial_name(final.name)
    what = f"can't save the checkpoint of step {step} in {folder}"

    def advise() -> str:
        return f"{describe_newest(folder)}. Solve that, then resume the run"

    def begin() -> None:
        with refusals(what, advise, partial):
            # Killed writes leave some, perhaps of steps that are not saved again.
            for remains in folder.glob(partial_name("*")):
                shutil.rmtree(remains, ignore_errors=True)
            (partial / PARTS if rows else partial).mkdir(parents=True)

    def complete() -> None:
        with refusals(what, advise, partial):
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
    name = STATE_OF_PARTS if parts else STATE
    write_state(partial / name, state)
    for written in (WEIGHTS, *([PARTS] if parts else [])):
        sync(partial / written)
    write_manifest(
        partial, step, {WEIGHTS: record_of(partial / WEIGHTS), name: record_of(partial / name), **parts}
    )
    if final.exists():  # a corrupt one, whose step a resumed run has reached again
        shutil.rmtree(final)
    partial.rename(final)
    sync(final.parent)


@contextmanager
def refusals(what: str, advise: Callable[[], str], *partial: Path) -> Iterator[None]:
    """Raise WriteRefused if a disk refuses, and remove the partial files.

    Args:
        what: what can't be done.
        advise: returns the end of the message, after the removal.
        partial: files and folders.
    """
    try:
        yield
    except _REFUSALS as error:
        existing = next(path for path in partial[0].parents if path.exists())
        free = shutil.disk_usage(existing).free >> 20
        for path in partial:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) if isinstance(error, OSError) else not free
        raise WriteRefused(
            f"{what}: {'the disk is full' if full else error} ({free} MiB free); {advise()}",
            arguments=("resume",),
        ) from error


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write and sync a state, in bytes that depend on its values alone."""
    torch.save(_without_identities(state), path)
    sync(path)


def write_manifest(folder: Path, step: int, files: Mapping[str, FileRecord]) -> None:
    """Write and sync the manifest of a checkpoint's folder, in place of an earlier one."""
    partial = folder / partial_name(MANIFEST)
    partial.write_text(json.dumps({"step": step, "files": files}, indent=2) + "\n")
    sync(partial)
    partial.replace(folder / MANIFEST)
    sync(folder)


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

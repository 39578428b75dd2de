"""Checkpoints: written aside, synced, then renamed; a torn one is known by its checksum and the one before is used.

A checkpoint is a folder ``step-00001000`` of

- ``model.safetensors``: the weights of backbone and head, for whoever wants them;
- ``state.pt``: all else that a resumed run needs, read with ``weights_only=True``, so that loading runs no code;
- ``manifest.json``: the step, and the size and SHA-256 of the other two. It is written last.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from dml_core import DmlError

WEIGHTS, STATE, MANIFEST = "model.safetensors", "state.pt", "manifest.json"
_FOLDER = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose files are those that were written."""

    step: int
    path: Path

    def weights(self) -> dict[str, Tensor]:
        """Backbone and head, by parameter name, on the CPU."""
        return safetensors.torch.load_file(self.path / WEIGHTS)

    def state(self, *, mapped: bool = False) -> dict[str, Any]:
        """All else, on the CPU; `mapped`, what isn't read of it takes no memory."""
        try:
            state: dict[str, Any] = torch.load(
                self.path / STATE, map_location="cpu", weights_only=True, mmap=mapped
            )
        except pickle.UnpicklingError as error:
            raise DmlError(
                f"{self.path / STATE} holds more than tensors and plain values, and was not loaded: {error}"
            ) from error
        return state


def write(
    folder: Path,
    step: int,
    weights: Mapping[str, Tensor],
    state: Mapping[str, Any],
    untrained: Collection[str] = (),
) -> Checkpoint:
    """Write a checkpoint so that at every moment either all of it is there under its name, or nothing.

    Args:
        folder: the run's folder of checkpoints; made if it isn't there.
        step: optimizer steps done.
        weights: of backbone and head.
        state: nested dicts, lists and tuples of tensors, numbers, strings and None.
        untrained: what no step moves of the weights and of ``state["loss"]``, and so may hold infinities on purpose.

    Raises:
        DmlError: if the disk is full or refuses, or the run has diverged, with what is left whole.
    """
    if (name := _diverged(weights, state, untrained)) is not None:
        raise DmlError(
            f"after step {step} {name} isn't finite, and nobody could go on from there, so no checkpoint is saved; "
            f"{_kept(folder)}. Try a lower optimizer.lr, a warmup in its schedule, training.gradient_clip = 1.0, "
            "or training.precision = 'float32'"
        )
    final = folder / _name(step)
    aside = folder / f".{final.name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        # Tensors that share memory can't be told apart in the file: each gets its own.
        safetensors.torch.save_file(
            {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()},
            aside / WEIGHTS,
        )
        torch.save(dict(state), aside / STATE)
        files = {name: {"bytes": (aside / name).stat().st_size, "sha256": _sha256(aside / name)}
                 for name in (WEIGHTS, STATE)}  # fmt: skip
        (aside / MANIFEST).write_text(json.dumps({"step": step, "files": files}, indent=2) + "\n")
        for name in (WEIGHTS, STATE, MANIFEST):
            _sync(aside / name)
        _sync(aside)
        if final.exists():  # a torn one, which a resumed run has come to again
            shutil.rmtree(final)
        aside.rename(final)
        _sync(folder)
    # safetensors and torch report a full disk as errors of their own; torch's doesn't even say what it is.
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        free = shutil.disk_usage(folder).free >> 20 if folder.exists() else 0
        shutil.rmtree(aside, ignore_errors=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) if isinstance(error, OSError) else not free
        raise DmlError(
            f"could not save the checkpoint of step {step} in {folder}: "
            f"{'the disk is full' if full else error} ({free} MiB free); {_kept(folder)}. "
            f"{'Make room there' if full else 'Mend that'}, then go on with --resume"
        ) from error
    return Checkpoint(step, final)


def newest_intact(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None if there is none."""
    return next(intact(folder), None)


def of_step(folder: Path, step: int) -> Checkpoint:
    """The checkpoint of a step.

    Raises:
        DmlError: if it is damaged or gone.
    """
    path = folder / _name(step)
    if (wrong := fault(path)) is not None:
        raise DmlError(f"the checkpoint {path}, whose weights are wanted, can't be used: {wrong}")
    return Checkpoint(step, path)


def intact(folder: Path) -> Iterator[Checkpoint]:
    """The checkpoints that are whole, from the newest to the oldest."""
    for step, path in _by_step(folder):
        if fault(path) is None:
            yield Checkpoint(step, path)


def corrupt(folder: Path) -> dict[Path, str]:
    """The checkpoints newer than the newest whole one, and what is wrong with each."""
    found: dict[Path, str] = {}
    for _, path in _by_step(folder):
        wrong = fault(path)
        if wrong is None:
            break
        found[path] = wrong
    return found


def fault(path: Path) -> str | None:
    """What is wrong with a checkpoint's folder, or None if its files are those that were written."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if path.name != _name(manifest["step"]):
            return f"{MANIFEST} is of step {manifest['step']}"
        for name in (WEIGHTS, STATE):
            expected = manifest["files"][name]
            if (size := (path / name).stat().st_size) != expected["bytes"]:
                return f"{name} has {size} bytes; {expected['bytes']} were written"
            if _sha256(path / name) != expected["sha256"]:
                return f"{name} has another SHA-256 than what was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except PermissionError:  # whole perhaps, and training anew from an older one would drop it
        raise
    except OSError as error:  # of a disk that is failing
        return f"it can't be read: {error.strerror}"
    except (ValueError, KeyError, TypeError):
        return f"{MANIFEST} is damaged"
    return None


def prune(folder: Path, keep: int, protected: Collection[int] = ()) -> None:
    """Remove all but the newest `keep` whole checkpoints and the `protected` steps; torn ones go, too."""
    kept = 0
    for step, path in _by_step(folder):
        # Older ones are counted by their names alone: hashing them all at each save would cost more than saving.
        if (path / MANIFEST).exists():
            kept += 1
            if kept <= keep or step in protected:
                continue
        shutil.rmtree(path)


def _diverged(
    weights: Mapping[str, Tensor], state: Mapping[str, Any], untrained: Collection[str]
) -> str | None:
    """What of the network, the loss or the optimizer's moments diverged in a step whose own loss was still finite.

    Of what isn't trained only NaN counts: a network may keep infinities on purpose, in a mask.
    """
    # Beside an average of the weights, which is `weights` then, the state has those that are averaged.
    parts = {"the network's": {**weights}, "the trained": state.get("model"), "the loss's": state.get("loss")}
    for part, tree in parts.items():
        for name, tensor in _tensors(tree):
            if tensor.isnan().any() if name in untrained else not tensor.isfinite().all():
                return f"{part} {name}"
    for name, moment in _tensors(state.get("optimizer")):
        if not moment.isfinite().all():
            return f"the optimizer's {name}"
    return None


def _tensors(tree: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested dicts, with the key that each has."""
    if isinstance(tree, Tensor):
        yield name, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _tensors(value, str(key))


def _kept(folder: Path) -> str:
    whole = newest_intact(folder)
    return (
        f"the checkpoint of step {whole.step} ({whole.path}) is whole" if whole else "there is no other yet"
    )


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


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

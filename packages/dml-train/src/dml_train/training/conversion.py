"""Checkpoints of a run from one form to the other: whole, or in parts that each rank writes.

Tensors are mapped from files, so a conversion needs little memory; the disk has both forms for a while, and from parts
to whole the tensors once more. The manifest is replaced last, so a killed conversion leaves the checkpoint as it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dml_core import DmlError
from dml_train.checksums import FileRecord, record_of
from dml_train.files import WriteRefused
from dml_train.ranks.sharding import OwnRows, is_placeholder
from dml_train.recipe.tables import Form
from dml_train.run_folder import RunFolder
from dml_train.training.checkpoint import (
    PARTS,
    STATE,
    STATE_OF_PARTS,
    WEIGHTS,
    Checkpoint,
    intact,
    read_manifest,
)
from dml_train.training.parts import Parts, part_name, write_part
from dml_train.training.saving import sync, write_manifest, write_state


def convert_checkpoints(run: str | Path, form: Form) -> list[Path]:
    """Convert a run's checkpoints to a form; any number of ranks loads the same bits from either.

    Args:
        run: the run's folder; nothing may train in it.
        form: ``"whole"``: the state is one file; ``"parts"``: class weights, and the optimizer's tensors of their
            shape, are in a part of their own.

    Returns:
        The checkpoints that were converted; empty if all have that form.

    Raises:
        DmlError: if it isn't a run's folder, another process trains in it, no checkpoint is intact, or the loss has no
            class weights to put into a part.
        WriteRefused: if the disk is full or refuses; the checkpoint stays as it was.
    """
    folder = RunFolder.open(Path(run))
    with folder.lock():
        found = list(intact(folder.checkpoints))
        if not found:
            raise DmlError(f"{folder.checkpoints} holds no intact checkpoint to convert")
        chosen = [checkpoint for checkpoint in found if checkpoint.form != form]
        for checkpoint in chosen:
            (_to_parts if form == "parts" else _to_whole)(checkpoint)
    return [checkpoint.path for checkpoint in chosen]


def _to_parts(checkpoint: Checkpoint) -> None:
    state = checkpoint.state(mapped=True)
    shapes = {
        value.shape
        for name, value in state["loss"].items()
        if name.rpartition(".")[2] == "class_weights" and isinstance(value, Tensor)
    }
    if not shapes:
        raise DmlError(f"the loss in {checkpoint.path} has no class weights; only they are written in parts")
    rows: dict[str, OwnRows] = {}

    def take(value: Tensor, path: str) -> Tensor:
        if value.shape not in shapes:
            return value
        rows[path] = OwnRows(value, 0)
        return torch.empty_like(value, device="meta")

    changed = _map_shared(state, take)
    folder = checkpoint.path / PARTS
    name = f"{PARTS}/{part_name(0, 1)}"
    with _refusals(checkpoint, folder):
        shutil.rmtree(folder, ignore_errors=True)  # of a killed conversion
        folder.mkdir()
        record = write_part(checkpoint.path / name, rows)
        write_state(checkpoint.path / STATE_OF_PARTS, changed)
        sync(folder)
        _switch(checkpoint, {STATE_OF_PARTS: record_of(checkpoint.path / STATE_OF_PARTS), name: record})
    (checkpoint.path / STATE).unlink(missing_ok=True)


def _to_whole(checkpoint: Checkpoint) -> None:
    parts, state = Parts(checkpoint.path / PARTS), checkpoint.state()
    mapped = checkpoint.path / ".mapped"
    with _refusals(checkpoint, checkpoint.path / STATE, mapped):
        shutil.rmtree(mapped, ignore_errors=True)  # of a killed conversion
        mapped.mkdir()

        def restore(value: Tensor, path: str) -> Tensor:
            if not is_placeholder(value):
                return value
            return _map_rows(parts, path, value, mapped / str(len(list(mapped.iterdir()))))

        write_state(checkpoint.path / STATE, _map_shared(state, restore))
        shutil.rmtree(mapped)
        _switch(checkpoint, {STATE: record_of(checkpoint.path / STATE)})
    shutil.rmtree(checkpoint.path / PARTS)


def _map_rows(parts: Parts, path: str, placeholder: Tensor, file: Path) -> Tensor:
    """Read a whole tensor into a file that is mapped into memory, which the system can write back and drop."""
    size = placeholder.numel()
    # Allocated first, so that a full disk is an error here: a write to mapped memory would end the process.
    with file.open("wb") as allocated:
        block = bytes(1 << 24)
        left = size * placeholder.element_size()
        while left:
            left -= allocated.write(block[: min(left, len(block))])
    rows = torch.from_file(str(file), shared=True, size=size, dtype=placeholder.dtype).view(placeholder.shape)
    parts.read_into(rows, path, placeholder, 0)
    return rows


def _map_shared(state: dict[str, Any], change: Callable[[Tensor, str], Tensor]) -> dict[str, Any]:
    """Return the state with the loss's and the optimizer's tensors changed, given each one and its path."""

    def walk(tree: Any, path: str) -> Any:
        if isinstance(tree, Tensor):
            return change(tree, path)
        if isinstance(tree, dict):
            return {key: walk(value, f"{path}/{key}") for key, value in tree.items()}
        return tree

    return {key: walk(value, key) if key in ("loss", "optimizer") else value for key, value in state.items()}


def _switch(checkpoint: Checkpoint, files: dict[str, FileRecord]) -> None:
    """Replace the manifest's files but the weights."""
    weights = read_manifest(checkpoint.path)[WEIGHTS]
    write_manifest(checkpoint.path, checkpoint.step, {WEIGHTS: weights, **files})


@contextmanager
def _refusals(checkpoint: Checkpoint, *new: Path) -> Iterator[None]:
    """Raise WriteRefused for what a disk refuses, and remove the new files."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        for path in new:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        free = shutil.disk_usage(checkpoint.path).free >> 20
        raise WriteRefused(
            f"can't convert {checkpoint.path}: {reason} ({free} MiB free); the checkpoint is unchanged"
        ) from error

"""Checkpoints of a run from one form to the other: whole, or in parts that each rank writes.

The manifest is replaced last, so a killed conversion leaves the checkpoint as it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dml_core import DmlError
from dml_train.checksums import record_of
from dml_train.files import sync
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
from dml_train.training.parts import part_name, write_part
from dml_train.training.saving import refusals, write_manifest, write_state


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

    _rewrite(checkpoint, _map_shared(state, take), rows)
    (checkpoint.path / STATE).unlink()


def _to_whole(checkpoint: Checkpoint) -> None:
    parts = checkpoint.parts()
    assert parts is not None

    def read(value: Tensor, path: str) -> Tensor:
        return parts.read(path, value, 0, len(value)) if is_placeholder(value) else value

    _rewrite(checkpoint, _map_shared(checkpoint.state(), read), {})
    shutil.rmtree(checkpoint.path / PARTS)


def _rewrite(checkpoint: Checkpoint, state: dict[str, Any], rows: dict[str, OwnRows]) -> None:
    """Write a state, in parts if there are rows, and the manifest of it and of the same weights."""
    folder, name = checkpoint.path, STATE_OF_PARTS if rows else STATE
    files = {WEIGHTS: read_manifest(folder)[WEIGHTS]}
    what = f"can't convert {folder}"
    with refusals(what, lambda: "the checkpoint is unchanged", folder / (PARTS if rows else STATE)):
        if rows:
            shutil.rmtree(folder / PARTS, ignore_errors=True)  # of a killed conversion
            (folder / PARTS).mkdir()
        write_state(folder / name, state)
        files[name] = record_of(folder / name)
        if rows:
            part = f"{PARTS}/{part_name(0, 1)}"
            files[part] = write_part(folder / part, rows)
            sync(folder / PARTS)
        write_manifest(folder, checkpoint.step, files)


def _map_shared(state: dict[str, Any], change: Callable[[Tensor, str], Tensor]) -> dict[str, Any]:
    """Return the state with the loss's and the optimizer's tensors changed, given each one and its path."""

    def walk(tree: Any, path: str) -> Any:
        if isinstance(tree, Tensor):
            return change(tree, path)
        if isinstance(tree, dict):
            return {key: walk(value, f"{path}/{key}") for key, value in tree.items()}
        return tree

    return {key: walk(value, key) if key in ("loss", "optimizer") else value for key, value in state.items()}

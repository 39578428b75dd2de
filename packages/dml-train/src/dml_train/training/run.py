"""From a recipe to a run's folder: `train`, and opening again what it left."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from rich.console import Console

from dml_core import DmlError, Registry
from dml_core import registry as installed
from dml_train.files import write_atomically
from dml_train.processes.stopping import end_with_launcher
from dml_train.ranks.ranks import join_ranks, was_restarted
from dml_train.recipe.checking import parse
from dml_train.recipe.tables import Recipe, differences
from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint
from dml_train.training.build import Experiment, build
from dml_train.training.checkpoint import Checkpoint
from dml_train.training.trainer import Trainer

# Keys that may differ between a run and its continuation: they change nothing of what is computed.
_FREE = ("training.workers:", "training.device:", "training.timeout:", "checkpoints.", "logging.")


def train(
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    force: bool = False,
    registry: Registry | None = None,
    console: Console | None = None,
) -> RunFolder:
    """Train by a recipe, embed the test split and measure it; everything is left in one folder.

    Args:
        recipe: what to do.
        out: the run's folder; must be new or empty, unless with `resume`.
        resume: go on from the newest whole checkpoint in `out`; from the start where there is none.
        force: with `resume`, go on also where the recipe differs from the run's, even if that was complete.
        registry: where components are found; default: all that is installed.
        console: where progress is shown; default: the error stream.

    Returns:
        The folder. A run that is complete already is left as it is.

    Raises:
        DmlError: what the user can mend; nothing that was there is lost.
        RunInterrupted: at SIGTERM or SIGINT, after a checkpoint was saved.
    """
    registry, console = registry or installed(), console or Console(stderr=True)
    with (
        end_with_launcher(),
        join_ranks(recipe.training.timeout) as ranks,
        _determinism(recipe.training.deterministic),
    ):
        if not ranks.is_first:
            console = Console(quiet=True)
        resume = resume or was_restarted()
        differs = ranks.run_on_first(lambda: _differences(out, recipe, resume, force))
        if differs == [] and ranks.run_on_first(RunFolder(out).evaluation.is_file):
            console.print(f"the run in {out} is complete", markup=False, highlight=False)
            return RunFolder(out)
        experiment = build(recipe, registry, ranks)
        with ExitStack() as until_the_end:
            folder = ranks.run_on_first(lambda: _begin(out, recipe, until_the_end))
            try:
                trainer = Trainer(experiment, folder, registry, console, ranks)
            except (RuntimeError, ValueError, KeyError) as error:
                if not differs:
                    raise
                raise DmlError(
                    f"the checkpoint in {out} doesn't fit the recipe, which differs:\n  "
                    + "\n  ".join(differs)
                    + f"\nGo on with the run's own recipe, or begin anew with another --out ({error})"
                ) from error
            ranks.run_on_first(lambda: _take_up(folder, recipe, differs))
            trainer.train()
    return folder


def reopen(path: Path, registry: Registry | None = None) -> tuple[RunFolder, Experiment]:
    """A run's folder, and its experiment with the weights of its newest whole checkpoint.

    Raises:
        DmlError: if it isn't a run's folder, has no whole checkpoint, or needs what isn't installed.
    """
    registry = registry or installed()
    folder = RunFolder.open(path)
    recipe = read_recipe(folder, registry)
    used = measured_checkpoint(folder)
    experiment = build(recipe, registry, pretrained=False)
    experiment.measured.load_state_dict(used.weights())
    return folder, experiment


def measured_checkpoint(folder: RunFolder) -> Checkpoint:
    """The checkpoint whose weights a run is measured by: the best so far if it selects any, or else the newest.

    Raises:
        DmlError: if there is no whole one.
    """
    newest = checkpoint.newest_intact(folder.checkpoints)
    if newest is None:
        raise DmlError(f"{folder.checkpoints} holds no whole checkpoint yet; train on with --resume first")
    best = int(newest.state()["best"]["step"])
    return checkpoint.of_step(folder.checkpoints, best) if best else newest


def read_recipe(folder: RunFolder, registry: Registry) -> Recipe:
    """The recipe that a run's folder holds, checked."""
    return parse(_document(folder), registry, str(folder.recipe))


def _document(folder: RunFolder) -> dict[str, object]:
    try:
        return tomllib.loads(folder.recipe.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DmlError(f"{folder.recipe} is damaged: {error}") from error


def _differences(out: Path, recipe: Recipe, resume: bool, force: bool) -> list[str] | None:
    """How this recipe differs from that of the run to go on with; None if there is none."""
    folder = RunFolder(out)
    if not (resume and folder.recipe.is_file()):
        RunFolder.refuse_existing(out)
        return None
    found = [d for d in differences(_document(folder), recipe.to_dict()) if not d.startswith(_FREE)]
    if found and not force:
        raise DmlError(
            f"the recipe differs from that of the run in {folder.path}:\n  "
            + "\n  ".join(found)
            + "\nGo on with the run's own recipe, or with this one by --force"
        )
    return found


def _begin(out: Path, recipe: Recipe, until_the_end: ExitStack) -> RunFolder:
    begun = RunFolder(out).recipe.is_file()
    folder = RunFolder(out) if begun else RunFolder.create(out)
    until_the_end.enter_context(folder.lock())
    if not begun:
        _take_up(folder, recipe, None)
    return folder


def _take_up(folder: RunFolder, recipe: Recipe, differs: list[str] | None) -> None:
    """Let the folder's recipe be this one; figures of a run that ended by another one are no longer its."""
    if differs:
        folder.evaluation.unlink(missing_ok=True)
    write_atomically(folder.recipe, lambda file: file.write(recipe.to_toml().encode()))


@contextmanager
def _determinism(wanted: bool) -> Iterator[None]:
    """torch's deterministic algorithms, for as long as the run lasts."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(wanted or before)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)

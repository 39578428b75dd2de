"""Every hook of the toolkit: who calls it, when, and what it returns.

A plugin is a module (or object) with functions of these names, marked `hookimpl`. An entry point of the group
``dml`` names it:

    from dml_core import Component, hookimpl

    @hookimpl
    def dml_losses():
        yield Component("my-loss", MyLoss, "one line about it", source="Me et al. 2026, Eq. 1")

    # pyproject.toml
    [project.entry-points.dml]
    my-plugin = "my_package.plugin"

An implementation may take any subset of a hook's arguments, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pluggy

from dml_core.components import Component, Run

PROJECT = "dml"  # pluggy's project name, and the entry-point group

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

# --- Components that a plugin provides. The registry calls each hook once a process, on the first look-up of its kind.
# A factory receives the keys of the recipe's table, and the context among its options (`dml_core.CONTEXT`).


@hookspec
def dml_losses() -> Iterable[Component]:  # type: ignore[empty-body]
    """Losses: `PairLoss` or `ClassLoss`. Context: num_classes, embedding_dim, steps_per_epoch, seed."""


@hookspec
def dml_samplers() -> Iterable[Component]:  # type: ignore[empty-body]
    """Batch samplers: `BatchSampler`; `MiningSampler` for mined negatives. Context: labels, seed."""


@hookspec
def dml_backbones() -> Iterable[Component]:  # type: ignore[empty-body]
    """Networks from images to features: `Backbone`. Context: in_channels, pretrained."""


@hookspec
def dml_datasets() -> Iterable[Component]:  # type: ignore[empty-body]
    """Data sets: `Dataset`; `RelatedDataset` and `GroupedSplit` say more about matches than labels. Context: seed."""


@hookspec
def dml_evaluators() -> Iterable[Component]:  # type: ignore[empty-body]
    """Evaluators: `Evaluator`; `PeersEvaluator` if ranks can share its work, and others. Context: seed."""


@hookspec
def dml_loggers() -> Iterable[Component]:  # type: ignore[empty-body]
    """Loggers: `RunLogger`. Context: directory (the run's), start_step (before a resume), recipe (as a dict)."""


# --- Events of a run. The trainer calls these on every rank, and ignores what they return. -------------------


@hookspec
def dml_run_start(run: Run) -> None:
    """Called once, after everything is built and before the first step."""


@hookspec
def dml_step_end(run: Run, step: int, values: Mapping[str, float]) -> None:
    """Called once for each optimizer step, in order, with its values: loss, learning rates, …

    `step` counts from 1. To avoid a wait for the GPU at every step, the trainer reads the values of several steps
    together: a call may come up to ``[logging] every`` steps late.
    """


@hookspec
def dml_evaluation_end(run: Run, step: int, result: Mapping[str, Any]) -> None:
    """Called after each evaluation with its metrics, as in `evaluation.json`."""


@hookspec
def dml_checkpoint_saved(run: Run, step: int, path: Path) -> None:
    """Called on rank 0 when the checkpoint at `path` is complete on disk."""


@hookspec
def dml_run_end(run: Run, step: int, error: BaseException | None) -> None:
    """Called once at the end, with the exception that ended the run early, or None."""


# --- Commands that a plugin provides. The `dml` command calls this once, at its start. -----------------------


@hookspec
def dml_commands() -> Iterable[Any]:  # type: ignore[empty-body]
    """Commands for `dml`, as `click.Command` objects. An existing name is an error."""

"""The hooks of the toolkit: who calls a hook, when, and what the hook should return.

To write a plugin, define functions with these names in a module (or object), mark the functions
using `hookimpl`, and name the module in an entry point of the group ``dml``:

    from dml_core import Component, hookimpl

    @hookimpl
    def dml_losses():
        yield Component("my-loss", MyLoss, "one line about it", source="Me et al. 2026, Eq. 1")

    # pyproject.toml
    [project.entry-points.dml]
    my-plugin = "my_package.plugin"

An implementation can take any subset of the arguments, by name.
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

# --- Components that a plugin provides. The registry calls a hook once per process, when the kind
# is first used. A factory receives the keys of the recipe's table, and the context values that it
# takes (`dml_core.CONTEXT`).


@hookspec
def dml_losses() -> Iterable[Component]:  # type: ignore[empty-body]
    """Provide losses: `PairLoss` or `ClassLoss`. Context: num_classes, embedding_dim,
    steps_per_epoch, seed.
    """


@hookspec
def dml_samplers() -> Iterable[Component]:  # type: ignore[empty-body]
    """Provide batch samplers: `BatchSampler`, or `MiningSampler` to use mined negatives. Context:
    labels, seed.
    """


@hookspec
def dml_backbones() -> Iterable[Component]:  # type: ignore[empty-body]
    """Provide networks from images to features: `Backbone`. Context: in_channels, pretrained."""


@hookspec
def dml_datasets() -> Iterable[Component]:  # type: ignore[empty-body]
    """Provide data sets: `Dataset`; see also `RelatedDataset` and `GroupedSplit`. Context: seed."""


@hookspec
def dml_evaluators() -> Iterable[Component]:  # type: ignore[empty-body]
    """Provide evaluators: `Evaluator`, or `PeersEvaluator` if ranks can share the work. Context:
    seed.
    """


@hookspec
def dml_loggers() -> Iterable[Component]:  # type: ignore[empty-body]
    """Provide loggers: `RunLogger`. Context: directory (the run's), start_step (steps done), recipe
    (a dict).
    """


# --- Events of a run. The trainer calls these hooks on all ranks, unless stated; returned values
# are not used.


@hookspec
def dml_run_start(run: Run) -> None:
    """Called once, after everything is built and before the first step."""


@hookspec
def dml_step_end(run: Run, step: int, values: Mapping[str, float]) -> None:
    """Called once per optimizer step, in order, with the step's values: loss, learning rates, …

    `step` counts from 1. The trainer reads the values of multiple steps together, to avoid waiting
    for the GPU at each step, so a call can be up to ``[logging] every`` steps late.
    """


@hookspec
def dml_evaluation_end(run: Run, step: int, result: Mapping[str, Any]) -> None:
    """Called after evaluations with the metrics; `result` is the content of `evaluation.json`."""


@hookspec
def dml_checkpoint_saved(run: Run, step: int, path: Path) -> None:
    """Called on rank 0 when the checkpoint at `path` is complete on disk."""


@hookspec
def dml_run_end(run: Run, step: int, error: BaseException | None) -> None:
    """Called once when the run ends: with the exception, if it ended early, or None."""


# --- Commands that a plugin provides. The `dml` command calls this hook once, when it
# starts. ----------------


@hookspec
def dml_commands() -> Iterable[Any]:  # type: ignore[empty-body]
    """Provide commands for `dml` as `click.Command` objects. It is an error if a name already
    exists.
    """

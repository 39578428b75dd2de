"""A search for settings in one call: the recipe, the trials, and the pages of the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from dml_core import DmlError, Registry
from dml_core import registry as installed
from dml_train.cluster.executors import Executor
from dml_train.recipe.loading import read
from dml_train.studies.tuning.page import write
from dml_train.studies.tuning.search import SettingsSearch, Trial, best_trial
from dml_train.studies.tuning.searching import run_search
from dml_train.studies.tuning.space import Space


class TuningResult(NamedTuple):
    """The result of `tune`."""

    search: SettingsSearch
    trials: Sequence[Trial]  # the finished ones
    pages: Sequence[Path]  # a page, a JSON file, and the recipe with the best settings

    @property
    def best(self) -> Trial:
        """The first trial with the highest value."""
        return best_trial(self.trials)


def tune(
    source: str | Path,
    space: Space,
    out: str | Path,
    *,
    trials: int,
    folds: int | None = None,
    seed: int = 0,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    processes: int = 1,
    executor: Executor | None = None,
    join: bool = False,
    storage: str | None = None,
    registry: Registry | None = None,
    console: Console | None = None,
) -> TuningResult:
    """Search settings of a recipe on held-out training classes; the test classes stay unseen.

    Args:
        source: a recipe's path, or the name of a bundled one.
        space: the keys that vary: ``{"optimizer.lr": Range(1e-4, 1e-2, log=True)}``.
        out: receives the trials and the result. An existing search resumes, and more trials extend it.
        trials: the total number of trials.
        folds: the number of class-disjoint folds of the training classes, each held out in turn; None: the classes
            that the recipe itself holds out.
        seed: of the choices.
        overrides: changes of the recipe, as in `dml_train.load_recipe`.
        processes: trainings at a time.
        executor: trains, instead of processes of this machine; see `run_all`.
        join: whether to work on one search together with other machines, each of which calls this function with the
            same arguments, and `out` in a folder that they share. Which values a trial's settings are based on then
            depends on the machines' speed.
        storage: with `join`, the URL of a database that keeps the trials; default: a file in `out`.
        registry: provides the components; default: those of all installed plugins.
        console: shows progress; default: none.

    Raises:
        DmlError: if optuna isn't installed, the recipe holds out nothing, the space doesn't fit it, or `out` belongs to
            another search.
        StudyInterrupted: at SIGTERM or Ctrl-C.
    """
    document, _ = read(source, overrides)
    search = SettingsSearch(document, space, folds, seed, registry or installed())
    done = run_search(
        search,
        Path(out),
        trials,
        console=console or Console(quiet=True),
        processes=processes,
        executor=executor,
        join=join,
        storage=storage,
    )
    if not done:
        raise DmlError(
            f"none of the {trials} trials has ended yet; other machines train them. Repeat the command later"
        )
    return TuningResult(search, done, write(search, done, Path(out), Path(source).stem))

"""The trials of a search, which Optuna proposes and stores for all processes that search together.

The settings of a trial are a function of the seed, the trial's number, and the values that are
known when it is proposed. Therefore interruptions don't change the search of a single process; with
more processes, the known values depend on the speed of the processes.
"""

from __future__ import annotations

import os
import warnings
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from dml_core import DmlError
from dml_train.cluster.workers import PROBE
from dml_train.extras import extra
from dml_train.files import make_folder, partial_path, read_json, report_write_errors, write_json
from dml_train.locks import hold_lock
from dml_train.recipe.tables import differences
from dml_train.seeds import derive
from dml_train.studies.runs import Job
from dml_train.studies.tuning.search import Choice, Range, SettingsSearch

_SEARCH = "search.json"
_STREAM = (
    0x74756E65  # the stream for the trials' seeds, distinct from the streams in `dml_train.seeds`
)
RANDOM_TRIALS = 10  # initial random trials, to give the sampler values to learn from


class TrialStore:
    """The trials of a new or resumed search in the folder `out`.

    Raise DmlError if optuna isn't installed, `out` belongs to a different search, or the trials
    can't be read.
    """

    def __init__(self, plan: SettingsSearch, out: Path) -> None:
        with extra("tune", "dml tune"):
            import optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.plan, self.out = plan, out
        self._optuna: Any = optuna
        _begin({**plan.to_dict(), "optuna": optuna.__version__}, out)
        journal, storages = out / "journal.log", self._optuna.storages
        with _report_errors(out):
            try:
                backend = storages.journal.JournalFileBackend(str(journal), _JournalLock(journal))
                storage = storages.JournalStorage(backend)
            except (ValueError, RecursionError) as error:
                raise DmlError(f"{journal} is corrupt: {error}") from error
            self._study = optuna.create_study(
                storage=storage, study_name="search", direction="maximize", load_if_exists=True
            )

    def chosen(self) -> list[Any]:
        """Return Optuna's trials, sorted by number, except trials for which the choice of settings
        was interrupted.
        """
        known = self._study.get_trials(deepcopy=False)
        return [trial for trial in known if trial.params.keys() == self.plan.space.keys()]

    def unfinished(self) -> list[Any]:
        """Return the unfinished trials."""
        return [trial for trial in self.chosen() if not trial.state.is_finished()]

    def folder(self, trial: Any) -> Path:
        """Return the folder for a trial's trainings."""
        return self.out / "trials" / f"{trial.number:04d}"

    def jobs(self, trial: Any) -> list[Job]:
        """Return a trial's trainings, by fold."""
        folder = self.folder(trial)
        return [
            Job(f"{folder.name}, fold {fold}", recipe, folder / f"fold-{fold}")
            for fold, recipe in enumerate(self.plan.recipes(trial.params))
        ]

    def ask(self, trials: int) -> bool:
        """Choose the settings of a new trial if fewer than `trials` exist; return whether they were
        chosen.
        """
        with _report_errors(self.out), hold_lock(self.out, wait=True):
            if len(self.chosen()) >= trials:
                return False
            number = len(self._study.get_trials(deepcopy=False))
            with (
                warnings.catch_warnings()
            ):  # before Optuna 5.0, some of these options were experimental
                warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
                self._study.sampler = self._optuna.samplers.TPESampler(
                    n_startup_trials=RANDOM_TRIALS,
                    seed=derive(self.plan.seed, _STREAM, number)
                    >> 32,  # numpy's legacy generators take 32 bits
                    multivariate=True,
                    # so that machines that search together propose different settings
                    constant_liar=True,
                )
            self._study.ask(
                {key: self._distribution(kind) for key, kind in self.plan.space.items()}
            )
        return True

    def tell(self, number: int, value: float | None) -> None:
        """Record a trial's value, or None if the trial failed."""
        with _report_errors(self.out):
            state = self._optuna.trial.TrialState.FAIL if value is None else None
            self._study.tell(number, value, state, skip_if_finished=True)

    def _distribution(self, dimension: Range | Choice) -> Any:
        kinds = self._optuna.distributions
        if isinstance(dimension, Choice):
            return kinds.CategoricalDistribution(dimension.values)
        kind = kinds.IntDistribution if dimension.is_integer else kinds.FloatDistribution
        return kind(dimension.low, dimension.high, log=dimension.log)


class _JournalLock:
    """A lock for Optuna's journal that ends with the process, and removes an incomplete last line.

    Optuna's default lock outlives a killed process, and appending to an incomplete line would
    corrupt the journal.
    """

    def __init__(self, journal: Path) -> None:
        self._journal, self._held = journal, ExitStack()

    def acquire(self) -> bool:
        self._held.enter_context(
            hold_lock(self._journal.with_name(f".{self._journal.name}.lock"), wait=True)
        )
        content = self._journal.read_bytes()
        if not content.endswith(b"\n"):
            os.truncate(self._journal, content.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        self._held.close()


def _begin(identity: dict[str, Any], out: Path) -> None:
    """Create the search's folder, or check that it belongs to this search; Optuna's version may
    differ.
    """
    path = out / _SEARCH
    make_folder(out)
    with (
        _report_errors(out),
        hold_lock(out, wait=True),
    ):  # multiple machines may start the search simultaneously
        if path.is_file():
            saved = read_json(path)
            if found := differences(saved, {**identity, "optuna": saved.get("optuna")}):
                listed = "\n  ".join(found)
                message = (
                    f"{out} contains a different search:\n  {listed}\nChoose a different folder"
                )
                raise DmlError(message, arguments=("out",))
            return
        # The folder may contain a partial `path`, if a search was killed while writing it, and the
        # probe of `expect`.
        harmless = partial_path(path).name, PROBE
        if not all(entry.name.startswith(harmless) for entry in out.iterdir()):
            message = f"{out} contains other files; nothing was written. Choose a different folder"
            raise DmlError(message, arguments=("out",))
        write_json(path, identity)


def _report_errors(folder: Path) -> AbstractContextManager[None]:
    advice = "; finished trials are kept. Correct this, then repeat the call or command"
    return report_write_errors(f"write the search in {folder}", advice)

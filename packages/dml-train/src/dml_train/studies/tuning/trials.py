"""The trials of a search: Optuna proposes them, and its storage keeps them for all processes that search together.

A trial's settings are a function of the seed, its number and the values known when it is proposed. So a search of one
process that was interrupted ends as an uninterrupted one; with several processes, the known values depend on their
speed.
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
_STREAM = 0x74756E65  # of the trials' seeds, distinct from those of `dml_train.seeds`
RANDOM_TRIALS = 10  # at the beginning, before the sampler has values to learn from


class TrialStore:
    """The trials of a search, which is begun or resumed in the folder `out`.

    Raise DmlError if optuna isn't installed, `out` is another search's, or the trials can't be read.
    """

    def __init__(self, plan: SettingsSearch, out: Path) -> None:
        with extra("tune", "dml tune"):
            import optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.plan, self.out = plan, out
        self._optuna = optuna
        _begin({**plan.to_dict(), "optuna": optuna.__version__}, out)
        with _writing(out):
            storage = _open_journal(optuna, out / "journal.log")
            self._study = optuna.create_study(
                storage=storage, study_name="search", direction="maximize", load_if_exists=True
            )

    def chosen(self) -> list[Any]:
        """Return Optuna's trials whose settings are chosen, by number; one whose choice was interrupted isn't."""
        known = self._study.get_trials(deepcopy=False)
        return [trial for trial in known if trial.params.keys() == self.plan.space.keys()]

    def unfinished(self) -> list[Any]:
        """Return the trials that have no result yet."""
        return [trial for trial in self.chosen() if not trial.state.is_finished()]

    def folder(self, trial: Any) -> Path:
        """Return the folder of a trial's trainings."""
        return self.out / "trials" / f"{trial.number:04d}"

    def jobs(self, trial: Any) -> list[Job]:
        """Return a trial's trainings, one a fold."""
        folder = self.folder(trial)
        return [
            Job(f"{folder.name}, fold {fold}", recipe, folder / f"fold-{fold}")
            for fold, recipe in enumerate(self.plan.recipes(trial.params))
        ]

    def ask(self, trials: int) -> bool:
        """Let the sampler choose the settings of a new trial, if fewer than `trials` exist; return whether it did."""
        with _writing(self.out), hold_lock(self.out, wait=True):
            if len(self.chosen()) >= trials:
                return False
            number = len(self._study.get_trials(deepcopy=False))
            with warnings.catch_warnings():  # before Optuna 5.0, two of these options were experiments
                warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
                self._study.sampler = self._optuna.samplers.TPESampler(
                    n_startup_trials=RANDOM_TRIALS,
                    seed=derive(self.plan.seed, _STREAM, number)
                    >> 32,  # numpy's legacy generators take 32 bits
                    multivariate=True,
                    constant_liar=True,  # machines that search together don't propose the same
                )
            self._study.ask({key: self._distribution(kind) for key, kind in self.plan.space.items()})
        return True

    def tell(self, number: int, value: float | None) -> None:
        """Record a trial's value; None: it failed."""
        with _writing(self.out):
            state = self._optuna.trial.TrialState.FAIL if value is None else None
            self._study.tell(number, value, state, skip_if_finished=True)

    def _distribution(self, dimension: Range | Choice) -> Any:
        kinds = self._optuna.distributions
        if isinstance(dimension, Choice):
            return kinds.CategoricalDistribution(dimension.values)
        kind = kinds.IntDistribution if dimension.is_integer else kinds.FloatDistribution
        return kind(dimension.low, dimension.high, log=dimension.log)


class _JournalLock:
    """A lock of Optuna's journal that ends with its process; it drops an incomplete last line.

    Optuna's default lock outlives a killed process, and a line appended to an incomplete one corrupts the journal.
    """

    def __init__(self, journal: Path) -> None:
        self._journal, self._held = journal, ExitStack()

    def acquire(self) -> bool:
        self._held.enter_context(hold_lock(self._journal.with_name(f".{self._journal.name}.lock"), wait=True))
        content = self._journal.read_bytes()
        if not content.endswith(b"\n"):
            os.truncate(self._journal, content.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        self._held.close()


def _open_journal(optuna: Any, path: Path) -> Any:
    journal = optuna.storages.journal
    try:
        return optuna.storages.JournalStorage(journal.JournalFileBackend(str(path), _JournalLock(path)))
    except (ValueError, RecursionError) as error:
        raise DmlError(f"{path} is corrupt: {error}") from error


def _begin(identity: dict[str, Any], out: Path) -> None:
    """Make the search's folder, or check that an existing one is of this search; Optuna's version may differ."""
    path = out / _SEARCH
    make_folder(out)
    with _writing(out), hold_lock(out, wait=True):  # several machines may begin it at the same time
        if path.is_file():
            saved = read_json(path)
            if found := differences(saved, {**identity, "optuna": saved.get("optuna")}):
                raise DmlError(
                    f"{out} holds a different search:\n  " + "\n  ".join(found) + "\nChoose another folder",
                    arguments=("out",),
                )
            return
        # A search killed before this file was complete has nothing to lose. `expect` puts a probe there.
        left = partial_path(path).name, PROBE
        if not all(entry.name.startswith(left) for entry in out.iterdir()):
            raise DmlError(
                f"{out} holds other files; nothing was touched. Choose another folder", arguments=("out",)
            )
        write_json(path, identity)


def _writing(folder: Path) -> AbstractContextManager[None]:
    advice = "; finished trials are kept. Solve that, then repeat the command"
    return report_write_errors(f"write the search in {folder}", advice)

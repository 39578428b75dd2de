"""The trials of a search: Optuna proposes them, and a storage keeps them, for one process or several machines.

In a search of one process, a trial's settings are a function of the seed, its number and the values of earlier trials,
so an interrupted search ends as an uninterrupted one. In a joint search, trials of several machines train at a time;
the values known when a trial is proposed depend on their speed.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from dml_core import DmlError
from dml_train.cluster.workers import PROBE
from dml_train.extras import extra
from dml_train.files import WriteRefused, write_json
from dml_train.locks import hold_lock
from dml_train.recipe.tables import differences
from dml_train.run_folder import RunFolder
from dml_train.seeds import derive
from dml_train.studies.tuning.journal import Journal
from dml_train.studies.tuning.search import SettingsSearch
from dml_train.studies.tuning.space import Choice, Scalar

_JOURNAL, _SEARCH = "journal.log", "search.json"
_STREAM = 0x74756E65  # of the trials' seeds, distinct from those of `dml_train.seeds`
RANDOM_TRIALS = 10  # at the beginning, before the sampler has values to learn from
# Optuna's defaults change between versions: 5.0 made `multivariate` and `constant_liar` true.
SAMPLER = {
    "n_startup_trials": RANDOM_TRIALS,
    "n_ei_candidates": 24,
    "multivariate": True,
    "group": False,
    "constant_liar": False,
}


class TrialStore:
    """The trials of a search; see `open_trials`.

    Args:
        plan: the search.
        study: Optuna's study.
        out: the search's folder.
        joint: whether other processes work on the same trials.
    """

    def __init__(self, plan: SettingsSearch, study: Any, out: Path, joint: bool) -> None:
        self.plan, self.out, self.joint = plan, out, joint
        self._study = study
        optuna = _optuna()
        self._distributions = {key: _distribution(optuna, kind) for key, kind in plan.space.items()}
        self._failed = optuna.trial.TrialState.FAIL

    def chosen(self) -> list[Any]:
        """Return Optuna's trials whose settings are chosen, by number."""
        known = self._study.get_trials(deepcopy=False)
        if not self.joint:  # else another process may be about to choose
            for torn in (t for t in known if not t.state.is_finished() and not self._is_chosen(t)):
                # Interrupted while its settings were chosen, it has trained nothing; another replaces it.
                self._study.tell(torn.number, state=self._failed)
        return [trial for trial in known if self._is_chosen(trial)]

    def unfinished(self) -> list[tuple[int, dict[str, Scalar]]]:
        """Return number and settings of the trials that have no result yet."""
        return [(t.number, dict(t.params)) for t in self.chosen() if not t.state.is_finished()]

    def ask(self, trials: int) -> bool:
        """Let the sampler choose the settings of a new trial, unless there are so many; return whether it did."""
        with hold_lock(self.out / ".ask.lock", wait=True) if self.joint else nullcontext():
            if len(self.chosen()) >= trials:
                return False
            self._study.ask(self._distributions)
        return True

    def tell(self, number: int, value: float | None) -> None:
        """Record a trial's value; None: it failed."""
        if value is None:
            self._study.tell(number, state=self._failed)
        else:
            self._study.tell(number, value)

    def _is_chosen(self, trial: Any) -> bool:
        return bool(trial.params.keys() == self.plan.space.keys())


@contextmanager
def open_trials(
    plan: SettingsSearch, out: Path, console: Console, *, join: bool = False, storage: str | None = None
) -> Iterator[TrialStore]:
    """Open the trials of a search; a new one is begun.

    Args:
        plan: the search.
        out: its folder.
        console: shows a change of Optuna's version.
        join: whether other processes may work on it at the same time.
        storage: for a joint search, the URL of a database that keeps the trials; None: a journal in `out`.

    Raises:
        DmlError: if optuna isn't installed, `out` is another search's, or another process searches in it and `join` is
            false.
    """
    optuna = _optuna()
    if storage is not None and not join:
        raise DmlError("a storage was given for a search of one process", arguments=("join",))
    sampler = {**SAMPLER, "constant_liar": join}  # which keeps machines from proposing the same settings
    identity = {**plan.to_dict(), "sampler": {"name": "TPESampler", **sampler}}
    where = {"joint": "journal" if storage is None else "database"} if join else {}
    _begin({**identity, **where, "optuna": optuna.__version__}, out, console)
    name = "search"
    if storage is not None:  # where other searches may be
        name = f"dml-{hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]}"
    with nullcontext() if join else RunFolder(out).lock():
        study = optuna.create_study(
            study_name=name,
            storage=_open_storage(optuna, out, storage),
            sampler=_numbered_sampler(optuna, plan.seed, sampler),
            direction="maximize",
            load_if_exists=True,
        )
        yield TrialStore(plan, study, out, join)


def _open_storage(optuna: Any, out: Path, url: str | None) -> Any:
    if url is None:
        return optuna.storages.JournalStorage(Journal(out / _JOURNAL))
    try:
        return optuna.storages.RDBStorage(url)
    except Exception as error:  # of sqlalchemy, its drivers, or the database; the URL may hold a password
        reason = str(error).splitlines()[0].replace(url, "the URL")
        raise DmlError(
            f"can't open the database of the search ({type(error).__name__}: {reason}); expected a URL such as "
            "postgresql://HOST/NAME or mysql://HOST/NAME, and its driver installed",
            arguments=("storage",),
        ) from error


def _numbered_sampler(optuna: Any, seed: int, options: dict[str, Any]) -> Any:
    """Return a sampler whose random numbers are a function of the seed and the trial's number."""

    class NumberedSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]
        def before_trial(self, study: Any, trial: Any) -> None:
            numbered = derive(seed, _STREAM, trial.number) >> 32  # numpy's legacy generators take 32 bits
            with warnings.catch_warnings():  # `multivariate` and `constant_liar` were experiments before 5.0
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                self._inner = optuna.samplers.TPESampler(seed=numbered, **options)
            self._inner.before_trial(study, trial)

        def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
            return self._inner.infer_relative_search_space(study, trial)

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
            return self._inner.sample_relative(study, trial, search_space)

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            return self._inner.sample_independent(study, trial, name, distribution)

    return NumberedSampler()


def _begin(mine: dict[str, Any], out: Path, console: Console) -> None:
    """Create the search's folder, or check that an existing one is of the same search.

    Another version of Optuna may resume a search; its trials may then differ, which is said.
    """
    path, version = out / _SEARCH, mine["optuna"]
    if path.is_file():
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            found = differences(saved, {**mine, "optuna": saved.get("optuna")})
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise DmlError(f"{path} is corrupt: {error}") from error
        if found:
            raise DmlError(
                f"{out} holds a different search:\n  " + "\n  ".join(found) + "\nChoose another folder",
                arguments=("out",),
            )
        if saved["optuna"] != version:
            console.print(
                f"optuna {saved['optuna']} began this search, and {version} resumes it: its choices may differ",
                markup=False,
                highlight=False,
            )
        return
    try:
        # A search killed before this file was complete has nothing to resume, and nothing to lose. `expect` has put a
        # probe there for a cluster's machines.
        left = f".{_SEARCH}.partial", PROBE
        if out.is_dir() and not all(entry.name.startswith(left) for entry in out.iterdir()):
            raise DmlError(
                f"{out} holds other files; nothing was touched. Choose another folder", arguments=("out",)
            )
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteRefused(f"can't make the folder {out}: {error.strerror}") from error
    write_json(path, mine)


def _distribution(optuna: Any, dimension: Any) -> Any:
    if isinstance(dimension, Choice):
        return optuna.distributions.CategoricalDistribution(dimension.values)
    kind = (
        optuna.distributions.IntDistribution
        if dimension.is_integer
        else optuna.distributions.FloatDistribution
    )
    return kind(dimension.low, dimension.high, log=dimension.log)


def _optuna() -> Any:
    with extra("tune", "dml tune"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna

"""Train a recipe into a run's folder, and open the folder again: `check_recipe`, `train` and
`reopen`.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from rich.console import Console

from dml_core import DmlError, Registry
from dml_core import registry as installed
from dml_train.files import check_path, write_text
from dml_train.processes.stopping import end_with_launcher
from dml_train.progress import say
from dml_train.ranks.environment import find_launcher, was_restarted
from dml_train.ranks.ranks import Ranks, join_ranks
from dml_train.recipe.checking import parse
from dml_train.recipe.tables import Recipe, differences
from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint
from dml_train.training.build import Experiment, build
from dml_train.training.checkpoint import Checkpoint
from dml_train.training.fingerprint import find_changes, save_fingerprint
from dml_train.training.rehearsal import rehearse
from dml_train.training.trainer import Trainer

# Keys that can differ when a run is resumed, since results will not change.
_FREE = (
    "training.workers:",
    "training.device:",
    "training.timeout:",
    "checkpoints.",
    "logging.",
    "evaluation.baselines:",
    "dataset.cache:",
)


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    registry: Registry | None = None,
    console: Console | None = None,
) -> RunFolder:
    """Train a recipe, then embed and evaluate the test split, and write all results to a folder.

    Args:
        recipe: the settings of the run, see `dml_train.load_recipe`.
        out: the run's folder; must be new or empty, unless `resume` is true.
        resume: resume from the newest intact checkpoint in `out`, or start if there is none.
        force: with `resume`, resume even if the recipe or the data set was changed, or if the run
            is complete.
        registry: provides the components; default: the components of all installed plugins.
        console: shows progress; by default, on the error stream. Use
            ``rich.console.Console(quiet=True)`` to show none.

    Returns:
        The folder. A complete run doesn't change, except that changed or damaged results are
        written again.

    Raises:
        DmlError: if the user must correct something; existing results are unchanged.
        RunInterrupted: on SIGTERM or SIGINT, after a checkpoint was saved.

    Example::

        recipe = load_recipe("my-images", {"dataset.root": "photos"})
        run = train(recipe, "runs/mine")
        run.read_evaluation()["recall@1"]
    """
    if not isinstance(recipe, Recipe):
        raise TypeError(
            f"recipe is a {type(recipe).__name__}; expected a Recipe: use "
            "dml_train.load_recipe(NAME or PATH)"
        )
    out, registry, console = Path(out), registry or installed(), console or Console(stderr=True)
    check_path(out)
    folder = RunFolder(out)
    with (
        end_with_launcher(find_launcher()),
        join_ranks(recipe.training.timeout) as ranks,
        _determinism(recipe.training.deterministic),
        ExitStack() as until_the_end,
    ):
        console = console if ranks.is_first else Console(quiet=True)
        resume = resume or was_restarted()
        is_locked = ranks.run_on_first(lambda: _lock_existing(folder, until_the_end))
        differs = ranks.run_on_first(
            lambda: list_differences(out, recipe, resume=resume, force=force)
        )
        if differs is not None:
            ranks.run_on_first(lambda: _check_metrics(folder))
        if differs == [] and ranks.run_on_first(lambda: _is_complete(folder, console)):
            say(console, f"the run in {out} is complete")
            return folder
        experiment = _prepare(recipe, registry, ranks, console, folder, differs, force=force)
        is_new = ranks.run_on_first(lambda: not out.exists())
        ranks.run_on_first(lambda: _open_folder(folder, recipe, is_locked, until_the_end))
        try:
            trainer = Trainer(experiment, folder, registry, console, ranks)
        except DmlError:  # for example, a logger's package is missing
            if is_new and ranks.is_first:
                shutil.rmtree(out, ignore_errors=True)
            raise
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
            problem = (
                f"the state of the run in {out} can't be restored ({type(error).__name__}: "
                f"{str(error)[:300]}): it is damaged, or a different version wrote it. Remove the "
                "newest checkpoint to resume from an older one, or start a new run"
            )
            if differs:
                problem = (
                    f"the checkpoint in {out} doesn't fit the recipe, which differs:\n  "
                    + "\n  ".join(differs)
                    + (
                        "\nResume with the original recipe, or start a new run in a different "
                        f"folder ({error})"
                    )
                )
            raise DmlError(problem, arguments=("out",)) from error
        ranks.run_on_first(lambda: _save_start(folder, experiment, differs))
        trainer.train()
    return folder


def check_recipe(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    force: bool = False,
    registry: Registry | None = None,
    console: Console | None = None,
) -> None:
    """Run all checks that `train` runs before the first step, but don't start a run.

    This function loads the data set, builds network, loss and sampler, and tries a forward and
    backward pass on two training images. Use it to find a mistake before a job waits in a queue,
    for example. Raise a `DmlError` if `train` would fail before the first step.

    Args:
        out: if given, also check that `train` could use this folder.
        recipe, resume, force, registry, console: see `train`.
    """
    registry, console = registry or installed(), console or Console(stderr=True)
    with join_ranks(recipe.training.timeout) as ranks, _determinism(recipe.training.deterministic):
        console = console if ranks.is_first else Console(quiet=True)
        differs = None
        if out is not None:
            check_path(Path(out))
            differs = ranks.run_on_first(
                lambda: list_differences(Path(out), recipe, resume=resume, force=force)
            )
        _prepare(recipe, registry, ranks, console, RunFolder(Path(out or "")), differs, force=force)


def _prepare(
    recipe: Recipe,
    registry: Registry,
    ranks: Ranks,
    console: Console,
    folder: RunFolder,
    differs: list[str] | None,
    *,
    force: bool,
) -> Experiment:
    """Build and describe an experiment, and rehearse the first step.

    If a run is resumed, `differs` lists the differences of the recipe; append the differences of
    the data.
    """
    say(console, f"loading the data set {recipe.dataset['name']!r}")
    experiment = build(recipe, registry, ranks, warn=differs is None)
    if differs is not None:
        differs += ranks.run_on_first(
            lambda: _check_differences(
                "data set", find_changes(folder, experiment.dataset), folder, force
            )
        )
    say(console, describe(experiment))
    rehearse(experiment)
    return experiment


def describe(experiment: Experiment) -> str:
    """Describe network, loss, data, steps and evaluation of a run in a sentence."""
    recipe, train, test = experiment.recipe, experiment.train, experiment.dataset.test
    weights = sum(parameter.numel() for parameter in experiment.model.parameters())
    text = (
        f"{recipe.backbone['name']} ({weights:,} weights) trains with {recipe.loss['name']} on "
        f"{len(train):,} images of {len(train.class_names):,} classes: {experiment.num_steps:,} "
        f"steps on {experiment.device}"
    )
    if experiment.validation is not None:
        text += f"; {len(experiment.validation.class_names):,} classes are held out for validation"
    if recipe.evaluation.test:
        text += (
            f"; then {len(test):,} images of {len(test.class_names):,} other classes are measured"
        )
    return text


def reopen(
    path: str | Path, registry: Registry | None = None, step: int | None = None
) -> tuple[RunFolder, Experiment]:
    """Open a run, and return the folder and the experiment with the weights of
    `evaluated_checkpoint`.

    Raise a `DmlError` if `path` isn't a run's folder, or a required package is missing; see
    `evaluated_checkpoint`.
    """
    registry = registry or installed()
    folder = RunFolder.open(Path(path))
    recipe = read_recipe(folder, registry)
    used = evaluated_checkpoint(folder, step)
    experiment = build(recipe, registry, pretrained=False)
    used.load_into(experiment.evaluated_model)
    return folder, experiment


def evaluated_checkpoint(folder: RunFolder, step: int | None = None) -> Checkpoint:
    """Find the checkpoint to evaluate: of `step` if given, the best if the run selects weights,
    otherwise the newest.

    Raise a `DmlError` that names intact checkpoints if this checkpoint is damaged or missing. An
    older checkpoint is not used instead, since the run's metrics don't describe the older weights.
    """
    if step is None and folder.is_finished:
        step = int(folder.read_evaluation()["step"])
    if step is not None:
        return _open_checkpoint(folder, step)
    newest = checkpoint.newest_step(folder.checkpoints)
    if not newest:
        raise DmlError(
            f"{folder.checkpoints} has no checkpoint yet; resume the training first",
            arguments=("resume",),
        )
    found = _open_checkpoint(folder, newest)
    best = found.best_step()
    return found if best in (0, newest) else _open_checkpoint(folder, best)


def _open_checkpoint(folder: RunFolder, step: int) -> Checkpoint:
    """Find the checkpoint of `step`; if it is damaged or missing, raise an error that names the
    intact ones.
    """
    try:
        return checkpoint.find_step(folder.checkpoints, step)
    except DmlError as error:
        steps = [str(intact.step) for intact in checkpoint.intact(folder.checkpoints)]
        if not steps:
            raise DmlError(
                f"{error}. All checkpoints are corrupt; resume the training", arguments=("resume",)
            ) from error
        raise DmlError(
            f"{error}. Use the weights of an intact checkpoint instead: step {' or '.join(steps)}",
            arguments=("step",),
        ) from error


def read_recipe(folder: RunFolder, registry: Registry) -> Recipe:
    """Read and check the recipe in a run's folder."""
    return parse(_document(folder), registry, str(folder.recipe))


def _document(folder: RunFolder) -> dict[str, object]:
    try:
        return tomllib.loads(folder.recipe.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DmlError(f"{folder.recipe} is corrupt: {error}") from error


def list_differences(out: Path, recipe: Recipe, *, resume: bool, force: bool) -> list[str] | None:
    """List how the recipe differs from the recipe of the run to resume; None if this run doesn't
    exist.

    Raise a `DmlError` if the recipes differ, unless `force`; or if `out` exists, unless `resume`.
    """
    folder = RunFolder(out)
    if not (resume and folder.recipe.is_file()):
        RunFolder.check_new(out)
        return None
    found = [d for d in differences(_document(folder), recipe.to_dict()) if not d.startswith(_FREE)]
    return _check_differences("recipe", found, folder, force)


def _check_differences(what: str, found: list[str], folder: RunFolder, force: bool) -> list[str]:
    if found and not force:
        raise DmlError(
            f"the {what} differs from the {what} of the run in {folder.path}:\n  "
            + "\n  ".join(found)
            + f"\nResume with the original {what}, or with this one by force",
            arguments=("force",),
        )
    return found


def _check_metrics(folder: RunFolder) -> None:
    """Raise a `DmlError` if a finished run's metrics.jsonl is damaged, since resuming would record
    it as intact.
    """
    try:
        recorded = folder.is_finished and folder.metrics.name in folder.read_manifest()
    except DmlError:  # the manifest is corrupt; resuming writes it again
        return
    if recorded and folder.metrics.is_file():
        folder.check_results(folder.metrics)


def _is_complete(folder: RunFolder, console: Console) -> bool:
    """Return whether the run is finished and intact; print which file is damaged."""
    if not folder.is_finished:
        return False
    try:
        folder.check_results()
    except DmlError as error:
        say(console, str(error))
        return False
    return not checkpoint.corrupt(folder.checkpoints)  # `Trainer` prints the faults


def _lock_existing(folder: RunFolder, until_the_end: ExitStack) -> bool:
    """Lock the folder if it exists, before data is loaded, and return whether it exists."""
    if exists := folder.path.is_dir():
        until_the_end.enter_context(folder.lock())
    return exists


def _open_folder(
    folder: RunFolder, recipe: Recipe, is_locked: bool, until_the_end: ExitStack
) -> None:
    if not is_locked:
        RunFolder.create(folder.path)
        until_the_end.enter_context(folder.lock())
        # Another process may have trained in the folder before this process locked it.
        RunFolder.check_new(folder.path)
    if not folder.recipe.is_file():
        write_text(folder.recipe, recipe.to_toml())


def _save_start(folder: RunFolder, experiment: Experiment, differs: list[str] | None) -> None:
    """Save the recipe and the data's fingerprint in the folder, and drop results that are outdated
    or damaged.
    """
    if differs or folder.is_finished:
        folder.drop_results()
    if differs or not folder.data.is_file():
        save_fingerprint(folder, experiment.dataset)
    write_text(folder.recipe, experiment.recipe.to_toml())


@contextmanager
def _determinism(wanted: bool) -> Iterator[None]:
    """Use torch's deterministic algorithms during the run."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(wanted or before)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)

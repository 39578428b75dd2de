"""The protocol of A Metric Learning Reality Check: four class-disjoint folds, separated and
concatenated.

Source: Musgrave, Belongie & Lim 2020, A Metric Learning Reality Check. The training classes are
split in order into four parts. Four models are trained on three parts each, and keep the weights
with the best MAP@R on the fourth, not on the test classes. *Separated* metrics are the mean of the
four models' metrics on the test split, *concatenated* metrics use the four L2-normalised embeddings
as a single vector. Both are repeated with different seeds.

Departures: the recipe chooses network, optimizer, batch content and early stopping, which the paper
fixes. The paper first searches hyper-parameters on these four folds; use `dml tune --folds 4` for
this search.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_core import DmlError, Registry
from dml_core import registry as installed
from dml_train.files import write_json, write_text
from dml_train.measure.evaluate import Embedded, build_evaluator, evaluate, select_numbers
from dml_train.measure.intervals import average_runs
from dml_train.recipe.checking import parse
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.studies.runs import Executor, Job, run_all, show_ends

FOLDS = 4
METRIC = "map@r"
_SHOWN = {"precision@1": "P@1", "r_precision": "RP", METRIC: "MAP@R"}


@dataclass(frozen=True, slots=True)
class RealityCheck:
    """The results of the protocol."""

    runs: int  # number of repetitions
    dim: int  # embedding dimension of a model
    separated: Mapping[str, Sequence[float]]  # by metric, a value per run
    concatenated: Mapping[str, Sequence[float]]

    def markdown(self, recipe: str) -> str:
        """Write the results as a Markdown page, in percent."""
        over = (
            f"mean and 95 % Student interval of {self.runs} runs"
            if self.runs > 1
            else "one run, no interval"
        )
        lines = [
            f"# {recipe} by the protocol of A Metric Learning Reality Check",
            "",
            (
                f"{FOLDS} class-disjoint folds of the training classes; each model keeps the "
                "weights with the best MAP@R on its held-out fold. The test classes were not used "
                f"for this choice. Percentages; {over}."
            ),
            "",
            (
                f"| metric | separated, {self.dim} dimensions | concatenated, {FOLDS * self.dim} "
                "dimensions |"
            ),
            "|---|---|---|",
        ]
        for name in [*_SHOWN, *(name for name in self.separated if name.startswith("recall@"))]:
            if name in self.separated and name in self.concatenated:
                title = _SHOWN.get(name) or f"R@{name.removeprefix('recall@')}"
                both = [
                    average_runs(values[name]) for values in (self.separated, self.concatenated)
                ]
                lines.append(
                    f"| {title} | {' | '.join(interval.percent(2) for interval in both)} |"
                )
        return "\n".join(lines) + "\n"


def fold_recipe(recipe: Recipe, registry: Registry, *, run: int, fold: int, dim: int) -> Recipe:
    """Set seed, dimension and validation of a model's recipe; raise DmlError if the recipe selects
    on test classes.
    """
    if recipe.validation.on_test:
        raise DmlError(
            "validation.on_test is true in the recipe; the protocol selects weights on held-out "
            "training classes only. Remove it from the recipe, or set it to false"
        )
    document = recipe.to_dict()
    # With equal initial weights, the models would be more similar than the protocol intends.
    document["training"]["seed"] += run * FOLDS + fold
    document["embedding"]["dim"] = dim
    patience = recipe.validation.patience
    document["validation"] = {"fold": fold, "folds": FOLDS, "metric": METRIC, "patience": patience}
    document["evaluation"]["test"] = True
    if "metrics" in document["evaluation"]:
        names = [*document["evaluation"]["metrics"], *_SHOWN]
        document["evaluation"]["metrics"] = list(dict.fromkeys(names))
    if not recipe.evaluation.every:
        document["evaluation"] |= {"every": 1.0, "unit": "epoch"}
    return parse(document, registry)


def plan_models(recipe: Recipe, out: Path, registry: Registry, *, runs: int, dim: int) -> list[Job]:
    """Plan the models of `reality_check`, four per repetition; see there for the arguments."""
    return [
        Job(
            f"run {run}, fold {fold}",
            fold_recipe(recipe, registry, run=run, fold=fold, dim=dim),
            out / f"run-{run}" / f"fold-{fold}",
        )
        for run in range(runs)
        for fold in range(FOLDS)
    ]


def reality_check(
    recipe: Recipe,
    out: str | Path,
    *,
    runs: int = 1,
    dim: int = 128,
    processes: int = 1,
    executor: Executor | None = None,
    registry: Registry | None = None,
    console: Console | None = None,
) -> RealityCheck:
    """Run the Metric Learning Reality Check; finished runs in `out` are kept, and unfinished runs
    resume.

    Raise DmlError if the recipe doesn't fit the protocol or a run failed; StudyInterrupted on
    SIGTERM or Ctrl-C.

    Args:
        recipe: system, data set and settings.
        out: the folder for the models' runs, ``run-I/fold-J``.
        runs: number of repetitions; seeds count up from the recipe's seed.
        dim: embedding dimension per model; 128 in the paper.
        processes, executor, registry, console: see `reproduce`.
    """
    registry, console = registry or installed(), console or Console(quiet=True)
    jobs = plan_models(recipe, Path(out), registry, runs=runs, dim=dim)
    outcomes = run_all(
        jobs,
        processes=processes,
        executor=executor,
        registry=registry,
        console=console,
        on_end=show_ends(jobs, console),
    )
    if faults := [f"{o.job.name}: {o.fault}" for o in outcomes if o.fault is not None]:
        raise DmlError(f"{len(faults)} of {len(jobs)} runs failed:\n" + "\n".join(faults))
    evaluator = build_evaluator(jobs[0].recipe, registry)
    separated: dict[str, list[float]] = {}
    concatenated: dict[str, list[float]] = {}
    for run in range(runs):
        models = outcomes[run * FOLDS : (run + 1) * FOLDS]
        joined = concatenate([Embedded.read(RunFolder(model.job.folder)) for model in models])
        metrics = [select_numbers(model.metrics()) for model in models]
        shared = [
            name for name in metrics[0] if name != "step" and all(name in each for each in metrics)
        ]
        means = {name: statistics.fmean(each[name] for each in metrics) for name in shared}
        together = select_numbers(evaluate(evaluator, joined).to_dict())
        for found, values in ((separated, means), (concatenated, together)):
            for name, value in values.items():
                found.setdefault(name, []).append(value)
    return RealityCheck(runs, dim, separated, concatenated)


def concatenate(models: Sequence[Embedded]) -> Embedded:
    """Concatenate the models' L2-normalised embeddings of the same items, so that cosines are
    averaged.
    """

    def join(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        rows = [
            part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12) for part in parts
        ]
        return np.concatenate(rows, axis=1, dtype=np.float32)

    gallery = [model.gallery for model in models if model.gallery is not None]
    embeddings = join([model.embeddings for model in models])
    return replace(models[0], embeddings=embeddings, gallery=join(gallery) if gallery else None)


def write(check: RealityCheck, out: Path, recipe: str) -> list[Path]:
    """Write the results to the folder as Markdown and JSON, and return the files."""
    page, data = out / "mlrc.md", out / "mlrc.json"
    results = asdict(check)
    write_json(data, {"runs": results.pop("runs"), "folds": FOLDS, **results})
    write_text(page, check.markdown(recipe))
    return [page, data]

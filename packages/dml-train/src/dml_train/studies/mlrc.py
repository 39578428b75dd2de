"""The protocol of A Metric Learning Reality Check: four class-disjoint folds, separated and concatenated.

Source: Musgrave, Belongie & Lim 2020, A Metric Learning Reality Check. The training classes, in their order, are cut
into four parts. Each of four models trains on three of them and keeps the weights that are best by MAP@R on the
fourth; the test classes choose nothing. *Separated* is the mean of the four models' figures on the test split,
*concatenated* the figures of their embeddings, L2-normalised and joined. Both are repeated with other seeds.

Left to the recipe, where the paper fixes one: network, optimizer, batch content, when validation stops the training.
The paper searches hyper-parameters on the same four folds before: that is `dml tune --folds 4`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_core import DmlError, Registry
from dml_train.files import write_atomically, write_json
from dml_train.measure.evaluate import Embedded, build_evaluator, evaluate, flatten_metrics
from dml_train.measure.intervals import Interval, of_runs
from dml_train.recipe.checking import parse
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.studies.runs import Job, Outcome, run_all

FOLDS = 4
METRIC = "map_at_r"
_SHOWN = {"precision_at_1": "P@1", "r_precision": "RP", METRIC: "MAP@R"}


@dataclass(frozen=True, slots=True)
class RealityCheck:
    """What the protocol found.

    Args:
        runs: how often it was repeated.
        dim: dimensions of one model.
        separated: by metric, a value a run: the mean of the models.
        concatenated: by metric, a value a run: the joined embeddings.
    """

    runs: int
    dim: int
    separated: Mapping[str, Sequence[float]]
    concatenated: Mapping[str, Sequence[float]]

    def intervals(self, name: str) -> tuple[Interval, Interval]:
        """A metric's mean and 95 % interval over the runs, separated and concatenated."""
        return of_runs(self.separated[name]), of_runs(self.concatenated[name])

    def markdown(self, recipe: str) -> str:
        """The page: what was done, and the figures in percent."""
        over = (
            f"mean and 95 % Student interval of {self.runs} runs" if self.runs > 1 else "one run, no interval"
        )
        lines = [
            f"# {recipe} by the protocol of A Metric Learning Reality Check",
            "",
            f"{FOLDS} class-disjoint folds of the training classes; each model's weights are those best by MAP@R on "
            f"the fold that it wasn't trained on. The test classes chose nothing. Percentages; {over}.",
            "",
            f"| metric | separated, {self.dim} dimensions | concatenated, {FOLDS * self.dim} dimensions |",
            "|---|---|---|",
        ]
        for name in self._shown():
            cells = [_percent(interval) for interval in self.intervals(name)]
            lines.append(f"| {_title(name)} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """All values in JSON's types, shares of 1."""
        return {
            "runs": self.runs,
            "folds": FOLDS,
            "dim": self.dim,
            "separated": {name: list(values) for name, values in self.separated.items()},
            "concatenated": {name: list(values) for name, values in self.concatenated.items()},
        }

    def _shown(self) -> list[str]:
        names = [*_SHOWN, *(name for name in self.separated if name.startswith("recall/"))]
        return [name for name in names if name in self.separated and name in self.concatenated]


def fold_recipe(recipe: Recipe, registry: Registry, *, run: int, fold: int, dim: int) -> Recipe:
    """The recipe of one of the models.

    Args:
        recipe: what it is made from. Its seed, embedding size and validation are the protocol's.
        registry: what the recipe is checked against.
        run: which repetition, from 0.
        fold: which part is held out, from 0.
        dim: dimensions of the embedding.

    Raises:
        DmlError: if the recipe asks for a selection on the test split.
    """
    if recipe.validation.on_test:
        raise DmlError(
            "the recipe says validation.on_test = true; the protocol lets only held-out training classes choose "
            "weights. Take it out, or --set validation.on_test=false"
        )
    document = recipe.to_dict()
    # Models of one start would be alike beyond what the data make of them.
    document["training"]["seed"] += run * FOLDS + fold
    document["embedding"]["dim"] = dim
    document["validation"] = {
        "fold": fold,
        "folds": FOLDS,
        "metric": METRIC,
        "patience": recipe.validation.patience,
    }
    document["evaluation"]["test"] = True
    if not recipe.evaluation.every:
        document["evaluation"] |= {"every": 1.0, "unit": "epoch"}
    return parse(document, registry)


def reality_check(
    recipe: Recipe,
    out: Path,
    *,
    registry: Registry,
    console: Console,
    runs: int = 1,
    dim: int = 128,
    processes: int = 1,
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> RealityCheck:
    """Run the protocol; runs that are done in `out` are kept, and those begun go on.

    Args:
        recipe: system, data set and settings.
        out: each model's run goes into ``run-I/fold-J`` in it.
        registry: where components are found.
        console: where progress is shown.
        runs: how often all of it is repeated; seeds count up from the recipe's.
        dim: dimensions of each model; 128 in the paper.
        processes: models trained at a time.
        told: called when a model's run has ended.

    Raises:
        DmlError: if the recipe isn't fit for it, or a run couldn't be finished.
        Stopped: as `run_all`.
    """
    jobs = [
        Job(
            f"run {run}, fold {fold}",
            fold_recipe(recipe, registry, run=run, fold=fold, dim=dim),
            out / f"run-{run}" / f"fold-{fold}",
        )
        for run in range(runs)
        for fold in range(FOLDS)
    ]
    outcomes = run_all(jobs, processes=processes, registry=registry, console=console, told=told)
    if faults := [f"{o.job.name}: {o.fault}" for o in outcomes if o.fault is not None]:
        raise DmlError(f"{len(faults)} of {len(jobs)} runs couldn't be finished:\n" + "\n".join(faults))
    evaluator = build_evaluator(recipe, registry)
    separated: dict[str, list[float]] = {}
    concatenated: dict[str, list[float]] = {}
    for run in range(runs):
        models = outcomes[run * FOLDS : (run + 1) * FOLDS]
        for name, value in _mean([flatten_metrics(model.metrics()) for model in models]).items():
            separated.setdefault(name, []).append(value)
        joined = join([Embedded.read(RunFolder(model.job.folder)) for model in models])
        for name, value in flatten_metrics(evaluate(evaluator, joined).to_dict()).items():
            concatenated.setdefault(name, []).append(value)
    return RealityCheck(runs, dim, separated, concatenated)


def join(models: Sequence[Embedded]) -> Embedded:
    """The models' embeddings of the same items, each L2-normalised, side by side.

    The cosine of two joined rows is the mean of the models' cosines.
    """
    first = models[0]
    gallery = [model.gallery for model in models if model.gallery is not None]
    return Embedded(
        _join([model.embeddings for model in models]),
        first.labels,
        _join(gallery) if gallery else None,
        first.gallery_labels,
    )


def write(check: RealityCheck, out: Path, recipe: str) -> list[Path]:
    """Leave the figures in the folder, for people and for programs."""
    page, data = out / "mlrc.md", out / "mlrc.json"
    write_json(data, check.to_dict())
    write_atomically(page, lambda file: file.write(check.markdown(recipe).encode()))
    return [page, data]


def _join(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    rows = [part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12) for part in parts]
    return np.concatenate(rows, axis=1, dtype=np.float32)


def _mean(models: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each figure that all have; `step` is no figure of the embedding."""
    shared = [name for name in models[0] if name != "step" and all(name in model for model in models)]
    return {name: statistics.fmean(model[name] for model in models) for name in shared}


def _title(name: str) -> str:
    return _SHOWN.get(name) or f"R@{name.removeprefix('recall/')}"


def _percent(interval: Interval) -> str:
    mean = f"{100 * interval.mean:.2f}"
    return mean if interval.half_width is None else f"{mean} ± {100 * interval.half_width:.2f}"

"""The page, JSON and recipe of a finished search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dml_train.files import write_atomically, write_json
from dml_train.recipe.checking import parse
from dml_train.studies.tuning.search import SettingsSearch, Trial, best_trial, format_value
from dml_train.studies.tuning.trials import RANDOM_TRIALS

_SHOWN = 20  # trials on the page; the JSON file has all


def markdown(plan: SettingsSearch, trials: Sequence[Trial], recipe: str) -> str:
    """Write the page: the budget first, then the best trials."""
    winner = best_trial(trials)
    failed = sum(trial.value is None for trial in trials)
    folds = plan.folds or 1
    base = parse(plan.document, plan.registry)
    length = f"{base.training.steps} steps" if base.training.steps else f"{base.training.epochs:g} epochs"
    held = (
        f"the mean over {folds} class-disjoint folds of the training classes, each held out in turn"
        if plan.folds
        else "on the training classes that the recipe holds out"
    )
    keys = list(plan.space)
    lines = [
        f"# Settings of {recipe}, chosen on validation classes",
        "",
        f"Budget: {len(trials)} trials ({failed} failed), {len(trials) * folds} trainings of at most {length}, "
        f"{sum(trial.seconds for trial in trials):.0f} s of processor time. Optuna's TPE sampler, seed {plan.seed}, "
        f"the first {min(RANDOM_TRIALS, len(trials))} at random. Judged by {plan.metric}, {held}. The test classes "
        "were neither embedded nor measured.",
        "",
        f"Best is trial {winner.number}: the highest of {len(trials) - failed} noisy values, so biased upwards.",
        "",
        f"| trial | {plan.metric} | {' | '.join(keys)} |",
        "|---" * (2 + len(keys)) + "|",
    ]
    for trial in sorted(trials, key=lambda t: (t.value is None, -(t.value or 0.0), t.number))[:_SHOWN]:
        value = "failed" if trial.value is None else f"{trial.value:.4f}"
        lines.append(
            f"| {trial.number} | {value} | {' | '.join(format_value(trial.settings[key]) for key in keys)} |"
        )
    return "\n".join(lines) + "\n"


def as_json(plan: SettingsSearch, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the search and all its trials in JSON's types."""
    return {
        **plan.to_dict(),
        "metric": plan.metric,
        "selected_on": "validation",
        "best": best_trial(trials).number,
        "trials": [asdict(trial) for trial in trials],
    }


def write(plan: SettingsSearch, trials: Sequence[Trial], out: Path, recipe: str) -> list[Path]:
    """Write the page, the JSON file, and the recipe with the best settings into the search's folder."""
    page, data, chosen = out / "tuning.md", out / "tuning.json", out / "best.toml"
    text = markdown(plan, trials, recipe)
    toml = parse(plan.apply(best_trial(trials).settings), plan.registry).to_toml()
    write_json(data, as_json(plan, trials))
    write_atomically(chosen, lambda file: file.write(toml.encode()))
    write_atomically(page, lambda file: file.write(text.encode()))
    return [page, data, chosen]

"""A sum of losses in a run: its terms are scheduled, logged, resumed to the same bits and shared by
ranks.
"""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console
from train_support.run_traces import check_same_bits, lines, stopped
from train_support.sharded_ranks import in_ranks, train_until
from train_support.tiny_world import make_document, make_registry

import dml_losses.plugin
from dml_core import InvalidOption
from dml_train.recipe.checking import parse
from dml_train.run_folder import RunFolder
from dml_train.training.run import train

SUM = {
    "name": "sum",
    "weights": {"spread": 0.1},
    "terms": {
        "softmax": {"name": "sharded-classes", "loss": {"name": "norm-softmax"}},
        "sampled": {"name": "sampled-classes", "class_fraction": 0.5, "loss": {"name": "cos-face"}},
        "memory": {"name": "cross-batch-memory", "capacity": 24, "loss": {"name": "sup-con"}},
        "spread": {"name": "koleo"},
    },
}
SCHEDULE = {
    "loss.weights.spread": {"kind": "linear", "start": 0.1, "end": 0.5},
    "loss.terms.sampled.loss.margin": {"kind": "linear", "start": 0.0, "end": 0.35},
}
TERMS = [f"loss.terms.{name}" for name in SUM["terms"]]


def logged_steps(folder: RunFolder) -> list[dict[str, Any]]:
    return [line for line in lines(folder) if "loss" in line]


def test_a_sum_resumes_to_the_same_bits_and_logs_its_terms(tmp_path):
    registry = make_registry()
    registry.plugins.register(dml_losses.plugin, distribution="dml-losses")
    document = make_document(
        training={"ema_decay": 0.9, "micro_batch": 3}, schedule=SCHEDULE, logging={"every": 1}
    )
    recipe = parse({**document, "loss": SUM}, registry)
    assert recipe.loss["terms"]["sampled"]["loss"]["scale"] == 64.0  # defaults are filled in

    def run(name, resume=False):
        return train(
            recipe, tmp_path / name, resume=resume, registry=registry, console=Console(quiet=True)
        )

    uninterrupted = run("uninterrupted")
    with stopped(registry, 9):
        run("stopped")
    check_same_bits(uninterrupted, run("stopped", resume=True))

    steps = logged_steps(uninterrupted)
    assert len(steps) == recipe.training.steps
    for line in steps:
        weights = [1.0, 1.0, 1.0, line["loss.weights.spread"]]
        # A sum in float32, logged as float64.
        assert line["loss"] == pytest.approx(
            sum(w * line[t] for w, t in zip(weights, TERMS, strict=True)), rel=1e-6
        )
    assert steps[0]["loss.weights.spread"] < steps[-1]["loss.weights.spread"]


def test_a_schedule_that_a_term_rejects_is_named_before_the_run(tmp_path):
    registry = make_registry()
    registry.plugins.register(dml_losses.plugin, distribution="dml-losses")
    schedule = {"loss.weights.spread": {"kind": "linear", "start": 0.1, "end": -1.0}}
    recipe = parse({**make_document(schedule=schedule), "loss": SUM}, registry)
    with pytest.raises(
        InvalidOption, match=r"'loss.weights.spread'\] reaches -1: .* weights.spread is -1.0"
    ):
        train(recipe, tmp_path / "run", registry=registry, console=Console(quiet=True))


@pytest.mark.slow
def test_two_ranks_train_a_sum_as_one_rank_does(tmp_path):
    document = make_document(
        training={"steps": 8},
        backbone={"dropout": 0.0, "norm": False},
        sampler={"classes_per_batch": 4, "images_per_class": 2},
        logging={"every": 1},
        schedule=SCHEDULE,
        loss=SUM,
    )
    train_until(document, tmp_path / "one", 99, ["dml_losses.plugin"])
    in_ranks(2, train_until, document, tmp_path / "two", 5, ["dml_losses.plugin"])
    in_ranks(2, train_until, document, tmp_path / "two", 99, ["dml_losses.plugin"])
    expected, found = (logged_steps(RunFolder(tmp_path / name)) for name in ("one", "two"))
    assert len(found) == 8
    for one, two in zip(expected, found, strict=True):
        # Ranks add up float32 numbers in a different order, over eight steps.
        assert [two[term] for term in TERMS] == pytest.approx(
            [one[term] for term in TERMS], rel=1e-4
        )

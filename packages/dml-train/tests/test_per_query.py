"""Reports use the per-query values that a run saves, but only if the values belong to the run."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from train_support.report_world import finished_run
from train_support.tiny_world import SignsBySorting, TinyEvaluator

from dml_core import DmlError
from dml_train.measure.evaluate import (
    Embedded,
    build_evaluator,
    evaluate,
    restore_evaluation,
    save_per_query,
)
from dml_train.report import write_report, write_side_by_side
from dml_train.run_folder import RunFolder
from dml_train.training.run import read_recipe


def contents(run, registry):
    """Return the run's folder, recipe, result and evaluator."""
    folder = RunFolder(run)
    recipe = read_recipe(folder, registry)
    return (
        folder,
        recipe,
        json.loads(folder.evaluation.read_text()),
        build_evaluator(recipe, registry),
    )


def save(run, registry):
    folder, recipe, _, evaluator = contents(run, registry)
    save_per_query(folder, recipe, evaluate(evaluator, Embedded.read(folder)))
    folder.write_manifest()
    return run


@pytest.fixture
def run(tmp_path, registry):
    return save(finished_run(tmp_path / "run", registry), registry)


@pytest.fixture
def evaluations(monkeypatch):
    """Record the class of the evaluator at every evaluation from now on."""
    classes = []
    original = TinyEvaluator.evaluate

    def evaluate(self, *arrays):
        classes.append(type(self))
        return original(self, *arrays)

    monkeypatch.setattr(TinyEvaluator, "evaluate", evaluate)
    return classes


def test_training_saves_each_metric_for_each_query(photo_run, registry):
    run = photo_run
    with np.load(run / "per_query.npz") as saved:
        recall_Q = saved["recall@1"]
    assert recall_Q.shape == np.load(run / "labels.npy").shape
    assert json.loads((run / "evaluation.json").read_text())["recall@1"] == recall_Q.mean()
    assert restore_evaluation(*contents(run, registry)) is not None


def test_reports_do_not_evaluate_again_and_are_the_same(run, registry, tmp_path, evaluations):
    page = write_report(run, registry).read_bytes()
    assert evaluations == [SignsBySorting]  # only evaluates the codes, which the run didn't
    other = save(finished_run(tmp_path / "other", registry, seed=1), registry)
    evaluations.clear()
    pair = write_side_by_side([run, other], tmp_path / "pair.html", registry).read_bytes()
    assert evaluations == []
    for folder in (run, other):
        (folder / "per_query.npz").unlink()
    assert write_report(run, registry).read_bytes() == page
    assert write_side_by_side([run, other], tmp_path / "pair.html", registry).read_bytes() == pair
    assert evaluations.count(TinyEvaluator) == 3


def test_values_of_another_evaluator_are_not_used(run, registry):
    assert restore_evaluation(*contents(run, registry)) is not None
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(
        re.sub(r'(\[evaluation\]\nname = )"exact"', r'\1"hamming"', recipe)
    )
    assert restore_evaluation(*contents(run, registry)) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.write_bytes(b"damaged"),
        lambda file: file.write_bytes(file.read_bytes()[:-40]),
        lambda file: np.savez(file, other=np.zeros(3)),
    ],
    ids=["damaged", "truncated", "other"],
)
def test_damaged_values_are_an_error(run, registry, change):
    change(run / "per_query.npz")
    with pytest.raises(DmlError, match=r"per_query\.npz has .* dml train .* --resume"):
        restore_evaluation(*contents(run, registry))


class Newer(TinyEvaluator):
    """An evaluator that can't restore old values, because it has an additional metric."""

    def restore(self, metrics, per_query):
        raise KeyError("ari")


class Forgetful:
    """An evaluator without `restore`."""

    evaluate, nearest = TinyEvaluator.evaluate, TinyEvaluator.nearest


@pytest.mark.parametrize("evaluator", [Newer(), Forgetful()])
def test_an_evaluator_that_cannot_restore_evaluates_again(run, registry, evaluator):
    *saved, _ = contents(run, registry)
    assert restore_evaluation(*saved, evaluator) is None

"""Held-out classes: disjoint from the training classes, evaluated during training, and used to
select weights.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from train_support.run_traces import lines
from train_support.tiny_world import TinyEvaluator, TinySplit, provide

from dml_core import DmlError
from dml_train.data.held_out_classes import hold_out, hold_out_fold
from dml_train.measure.evaluate import build_evaluator
from dml_train.recipe.checking import parse
from dml_train.training import checkpoint
from dml_train.training.best import Best
from dml_train.training.run import reopen


@given(st.integers(2, 9), st.floats(0.01, 0.99), st.integers(0, 2**63 - 1))
def test_held_out_and_training_classes_divide_the_split(count, fraction, seed):
    split = TinySplit(count, 3, 0)
    kept, held_out = hold_out(split, fraction, seed)
    assert {*kept.class_names} | {*held_out.class_names} == {*split.class_names}
    assert len(kept.class_names) + len(held_out.class_names) == count
    assert len(held_out.class_names) == min(count - 1, max(1, round(fraction * count)))
    for part in (kept, held_out):
        assert np.array_equal(part.labels, np.repeat(np.arange(len(part.class_names)), 3))
        for item in (0, len(part) - 1):
            original = split.class_names.index(part.class_names[part.labels[item]]) * 3 + item % 3
            assert torch.equal(part.load(np.array([item])), split.load(np.array([original])))


def test_a_fraction_of_0_holds_nothing_out():
    split = TinySplit(3, 2, 0)
    assert hold_out(split, 0.0, 0) == (split, None)
    with pytest.raises(DmlError, match="there is only 1 class to train on"):
        hold_out(TinySplit(1, 2, 0), 0.5, 0)


@given(st.integers(2, 6), st.integers(2, 9))
def test_folds_are_disjoint_consecutive_and_cover_all_classes(folds, count):
    split = TinySplit(max(folds, count), 2, 0)
    parts = [hold_out_fold(split, fold, folds) for fold in range(folds)]
    assert [name for _, held_out in parts for name in held_out.class_names] == split.class_names
    sizes = [len(held_out.class_names) for _, held_out in parts]
    assert max(sizes) - min(sizes) <= 1
    for kept, held_out in parts:
        assert sorted([*kept.class_names, *held_out.class_names]) == sorted(split.class_names)
        assert len(kept) + len(held_out) == len(split)


def test_more_folds_than_classes_are_refused():
    with pytest.raises(DmlError, match="folds is 4, but there are 3 classes to train on"):
        hold_out_fold(TinySplit(3, 2, 0), 0, 4)


def test_an_unknown_metric_is_named():
    with pytest.raises(
        DmlError, match=r"'map_at_R'; did you mean 'map@r'\? the evaluator measured: map@r"
    ):
        Best("map_at_R", 0).update(1, {"map@r": 0.5})


@pytest.fixture
def script(monkeypatch):
    """Let evaluations return these values in turn when the number of items is in `items`."""

    def script(values, items):
        measured, evaluate = iter(values), TinyEvaluator.evaluate

        def scripted(self, embeddings, labels, gallery=None, gallery_labels=None):
            result = evaluate(self, embeddings, labels, gallery, gallery_labels)
            if len(labels) in items:
                value = next(measured)
                result.to_dict = lambda: {"recall@1": value}
            return result

        monkeypatch.setattr(TinyEvaluator, "evaluate", scripted)

    return script


EVERY_TWO = {"every": 2, "unit": "step"}
PATIENT = {
    "class_fraction": 0.34,
    "metric": "recall@1",
    "patience": 2,
}  # holds out 2 classes of 8 items


def test_a_run_stops_early_and_keeps_the_best_weights(run, script, registry, quiet):
    values = [0.1, 0.5, 0.4, 0.5]
    script(values, [16])
    folder = run(evaluation=EVERY_TWO, validation=PATIENT)
    logged = lines(folder)
    assert [
        line["validation/recall@1"] for line in logged if "validation/recall@1" in line
    ] == values
    assert logged[-1]["step"] == 8
    assert json.loads(folder.evaluation.read_text())["step"] == 4
    assert 4 in [c.step for c in checkpoint.intact(folder.checkpoints)]
    _, experiment = reopen(folder.path, registry)
    assert np.array_equal(experiment.embed_test(quiet).embeddings, np.load(folder.embeddings()))


def test_held_out_classes_are_not_trained_on(run, script, registry):
    script([0.1] * 9, [16])
    folder = run(evaluation=EVERY_TWO, validation=PATIENT)
    _, experiment = reopen(folder.path, registry)
    assert experiment.loss.class_weights.shape[0] == 4
    assert not {*experiment.train.class_names} & {*experiment.validation.class_names}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"validation": {"class_fraction": 0.5}},
            r"validation.class_fraction is given; expected evaluation.every above 0",
        ),
        (
            {"validation": {"patience": 3}},
            r"validation.patience is given; expected class_fraction, folds or on_test, too",
        ),
        (
            {"validation": {"on_test": True}},
            r"validation.on_test is given; expected evaluation.every above 0",
        ),
        ({"validation": {"folds": 4}}, r"only folds = 4 is given; expected both fold and folds"),
        ({"validation": {"fold": 4, "folds": 4}}, r"fold = 4 of folds = 4; expected 0 to 3"),
        (
            {"validation": {"class_fraction": 0.5, "on_test": True}, "evaluation": {"every": 1}},
            r"class_fraction = 0.5 and on_test = true are given; expected only one of these",
        ),
        (
            {"evaluation": {"test": False}},
            r"metrics would not be measured; expected validation.class_fraction above 0",
        ),
    ],
)
def test_inconsistent_validation_options_are_refused(tiny_document, registry, tables, message):
    with pytest.raises(DmlError, match=message):
        parse(tiny_document(**tables), registry)


@pytest.mark.parametrize(
    ("validation", "selected_on"),
    [({"on_test": True}, "test"), ({"fold": 1, "folds": 3}, "validation"), ({}, None)],
)
def test_a_run_records_which_classes_selected_its_weights(run, script, validation, selected_on):
    script([0.9, 0.5, 0.4, 0.3], [16, 48])
    tables = {"evaluation": EVERY_TWO, "validation": {**validation, "metric": "recall@1"}}
    result = json.loads(run(training={"steps": 6}, **tables).evaluation.read_text())
    assert (result["selected_on"], result["step"]) == (selected_on, 2 if selected_on else 6)


def test_a_run_without_the_test_split_measures_the_held_out_classes_only(run):
    evaluation, validation = (
        {**EVERY_TWO, "test": False},
        {"fold": 0, "folds": 3, "metric": "recall@1"},
    )
    folder = run(training={"steps": 4}, evaluation=evaluation, validation=validation)
    result = json.loads(folder.evaluation.read_text())
    logged = lines(folder)
    watched = {
        line["step"]: line["validation/recall@1"]
        for line in logged
        if "validation/recall@1" in line
    }
    assert result["split"] == "validation"
    assert result["recall@1"] == max(watched.values()) == watched[result["step"]]
    assert not folder.embeddings().exists()


class Clusters:
    """An evaluator that, like `exact`, rejects `n_clusters` unless the metrics include a clustering
    metric.
    """

    def __init__(
        self, metrics: Sequence[str] = ("recall@1",), n_clusters: int | None = None, seed: int = 0
    ) -> None:
        if n_clusters is not None and "nmi_max" not in metrics:
            raise ValueError("n_clusters without nmi_max")
        self.options = {"metrics": list(metrics), "n_clusters": n_clusters, "seed": seed}


@pytest.mark.parametrize(
    ("asked", "of_rankings"),
    [
        (["recall@5", "nmi_max", "mine", "tar@far=1e-3"], ["recall@5", "mine"]),
        (["nmi_max", "ari"], ["recall@1"]),  # recall@1 is the evaluator's default
    ],
)
def test_the_evaluator_has_the_recipes_options_and_on_request_no_clusters(
    registry, tiny_document, asked, of_rankings
):
    provide(registry, "evaluators", "clusters", Clusters)
    table = {"name": "clusters", "metrics": asked, "n_clusters": 3}
    recipe = parse(tiny_document(evaluation=table), registry)
    built = build_evaluator(recipe, registry)
    assert built.options == {"metrics": asked, "n_clusters": 3, "seed": 3}
    built = build_evaluator(recipe, registry, clustering=False)
    assert built.options == {"metrics": of_rankings, "n_clusters": None, "seed": 3}

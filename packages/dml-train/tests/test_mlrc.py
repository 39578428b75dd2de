"""The protocol of the Reality Check: disjoint folds, the mean of the models, and concatenated
embeddings.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from train_support.tiny_world import TinyEvaluator

from dml_core import DmlError
from dml_train.measure.evaluate import Embedded
from dml_train.recipe.checking import parse
from dml_train.studies.mlrc import FOLDS, concatenate, fold_recipe, reality_check
from dml_train.training.run import reopen


@pytest.fixture
def recipe(tiny_document, registry):
    return parse(
        tiny_document(
            training={"steps": 4},
            dataset={"num_classes": 8},
            evaluation={"every": 2, "unit": "step"},
            validation={"class_fraction": 0.5, "metric": "recall@1", "patience": 3},
        ),
        registry,
    )


def test_each_model_holds_out_another_fourth_of_the_classes_and_has_its_own_seed(
    recipe, tiny_document, registry
):
    made = [fold_recipe(recipe, registry, run=1, fold=fold, dim=5) for fold in range(FOLDS)]
    assert [(r.validation.fold, r.validation.folds) for r in made] == [
        (0, 4),
        (1, 4),
        (2, 4),
        (3, 4),
    ]
    assert len({r.training.seed for r in made}) == FOLDS
    assert {(r.embedding.dim, r.validation.metric, r.validation.patience) for r in made} == {
        (5, "map@r", 3)
    }
    assert made[0].evaluation.component()["metrics"] == [
        "recall@1",
        "precision@1",
        "r_precision",
        "map@r",
    ]
    other = fold_recipe(recipe, registry, run=0, fold=0, dim=5)
    assert other.training.seed not in {r.training.seed for r in made}
    made = fold_recipe(parse(tiny_document(), registry), registry, run=0, fold=0, dim=5)
    assert (made.evaluation.every, made.evaluation.unit) == (
        1.0,
        "epoch",
    )  # the default: not periodic


def test_selection_on_the_test_split_is_refused(tiny_document, registry, quiet, tmp_path):
    recipe = parse(
        tiny_document(evaluation={"every": 1}, validation={"on_test": True, "metric": "recall@1"}),
        registry,
    )
    with pytest.raises(DmlError, match="on held-out training classes only"):
        reality_check(recipe, tmp_path / "out", registry=registry, console=quiet)
    assert not (tmp_path / "out").exists()


def test_separated_is_a_mean_and_concatenated_measures_joined_embeddings(
    recipe, registry, quiet, tmp_path
):
    found = reality_check(recipe, tmp_path, registry=registry, console=quiet, runs=2, dim=5)
    folders = [
        [tmp_path / f"run-{run}" / f"fold-{fold}" for fold in range(FOLDS)] for run in range(2)
    ]
    seen = set()
    for run, models in enumerate(folders):
        figures = [json.loads((model / "evaluation.json").read_text()) for model in models]
        assert {f["selected_on"] for f in figures} == {"validation"}
        assert found.separated["map@r"][run] == pytest.approx(
            np.mean([f["map@r"] for f in figures])
        )
        rows = [np.load(model / "embeddings.npy").astype(np.float64) for model in models]
        joined = np.hstack([r / np.linalg.norm(r, axis=1, keepdims=True) for r in rows])
        assert joined.shape[1] == FOLDS * 5
        labels = np.load(models[0] / "labels.npy")
        assert (
            found.concatenated["map@r"][run] == TinyEvaluator().evaluate(joined, labels)["recall@1"]
        )
        seen |= {name for m in models for name in reopen(m, registry)[1].validation.class_names}
    assert len(seen) == 8  # the folds together are all training classes
    text = found.markdown("tiny")
    assert "| metric | separated, 5 dimensions | concatenated, 20 dimensions |" in text
    assert "±" in text
    assert "The test classes were not used for this choice" in text


@given(st.data(), st.integers(1, 3), st.integers(2, 4))
def test_the_cosine_of_joined_rows_is_the_mean_of_the_models_cosines(data, models, items):
    # Keep norms well inside float32's range, since this tests the arithmetic and not overflow.
    numbers = st.floats(-10, 10, width=32).filter(lambda x: abs(x) > 1e-3)
    parts = [
        data.draw(arrays.arrays(np.float32, (items, 3), elements=numbers)) for _ in range(models)
    ]
    labels = np.zeros(items, dtype=np.int64)
    joined = concatenate([Embedded(part, labels) for part in parts]).embeddings
    unit = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in parts]
    expected = np.mean([u @ u.T for u in unit], axis=0)
    lengths = np.linalg.norm(joined, axis=1)
    # Allow for a few float32 roundings of numbers up to 1.
    np.testing.assert_allclose(joined @ joined.T / np.outer(lengths, lengths), expected, atol=1e-5)

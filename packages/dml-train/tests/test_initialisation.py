"""Work before the first step: class weights drawn or averaged, and adapted batch norms."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from dml_core import DmlError, InvalidOption
from dml_losses import MemVir, NormSoftmax, ShardedClasses, SoftTriple
from dml_train.data.batches import StepBatches
from dml_train.networks.model import LevelledLoss
from dml_train.recipe.checking import parse
from dml_train.recipe.tables import Initialisation
from dml_train.training import checkpoint
from dml_train.training.build import build
from dml_train.training.checks import check_initialisation
from dml_train.training.class_weights import find_class_weights
from dml_train.training.initialisation import class_means, draw_by_classes
from dml_train.training.run import train

# Use a rate of 0 to keep all weights, so that the end of a run shows the initial weights.
STILL = {"training": {"steps": 1}, "optimizer": {"lr": 0.0}}
TWO_LEVELS = {
    "name": "small-conv",
    "widths": [8, 16],
    "norm": "group",
    "levels": ["block1", "block2"],
}


@pytest.fixture
def run(tiny_document, registry, tmp_path, quiet):
    """Train a tiny recipe; return the experiment as built, and the final weights and state of the
    loss.
    """

    def run(**tables):
        recipe = parse(tiny_document(**{**STILL, **tables}), registry)
        folder = train(recipe, tmp_path / "run", registry=registry, console=quiet)
        last = checkpoint.newest_intact(folder.checkpoints)
        return build(recipe, registry), last.weights(), last.state()["loss"]

    return run


def test_class_weights_can_start_at_the_means_of_their_classes(run, quiet):
    before, _, loss = run(initialisation={"class_weights": "class-means"})
    rows, labels = before.embed(before.train, quiet), before.train.labels
    expected = class_means(rows, labels, 6)
    np.testing.assert_array_equal(loss["class_weights"], expected)
    by_numpy = [rows[labels == c].astype(np.float64).mean(axis=0) for c in range(6)]
    np.testing.assert_allclose(expected, by_numpy, rtol=1e-6)
    assert not np.allclose(expected, before.loss.class_weights.detach())


def test_each_levels_class_weights_start_at_the_means_of_its_part(run, quiet):
    before, _, loss = run(backbone=TWO_LEVELS, initialisation={"class_weights": "class-means"})
    expected = class_means(before.embed(before.train, quiet), before.train.labels, 6)
    for level in (0, 1):
        part = expected[:, 8 * level : 8 * level + 8]
        np.testing.assert_array_equal(loss[f"levels.{level}.class_weights"], part)


def test_class_weights_can_be_drawn_by_the_number_of_classes(run):
    before, _, loss = run(initialisation={"class_weights": "uniform-by-classes"})
    drawn = loss["class_weights"]
    assert drawn.shape == before.loss.class_weights.shape == (6, 8)
    assert 0.8 * 6**-0.5 < drawn.abs().max() <= 6**-0.5
    assert drawn.mean().abs() < 0.15  # 48 numbers with deviation 6**-0.5 / 3**0.5


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_draw_their_class_weights_by_classes_as_one_does(monkeypatch, ranks):
    recipe = SimpleNamespace(training=SimpleNamespace(seed=3))
    whole = LevelledLoss([NormSoftmax(7, 5), NormSoftmax(7, 9)], [5, 9], [1.0, 1.0])
    draw_by_classes(SimpleNamespace(recipe=recipe, loss=whole))
    for rank in range(ranks):
        for module in ("dml_losses.class_weights", "dml_losses.ranks.sharded_classes"):
            monkeypatch.setattr(f"{module}.rank_and_world_size", lambda rank=rank: (rank, ranks))
        sharded = [ShardedClasses(NormSoftmax(7, dim)) for dim in (5, 9)]
        draw_by_classes(
            SimpleNamespace(recipe=recipe, loss=LevelledLoss(sharded, [5, 9], [1.0, 1.0]))
        )
        for level, own in zip(whole.levels, sharded, strict=True):
            (rows,) = own.sharded_parameters().values()
            drawn = own.loss.class_weights
            assert torch.equal(drawn, level.class_weights[rows.first : rows.first + len(drawn)])


def test_adapting_updates_the_statistics_of_batch_norms_and_no_weight(run):
    before, weights, _ = run(
        initialisation={"adapt_batch_norm": 2.0}, training={"steps": 1, "seed": 3}
    )
    model, statistics = before.model.train(), ("running_mean", "running_var", "num_batches_tracked")
    batches = StepBatches(before.train, before.sampler, seed=3)
    with torch.no_grad():
        for step in [*range(2 * len(before.sampler)), 0]:  # the only step of training comes last
            model(batches[step].images)
    for name, tensor in model.state_dict().items():
        tolerance = (
            1e-6 if name.endswith(statistics) else 0
        )  # AdamW with a rate of 0 keeps the weights' bits
        torch.testing.assert_close(weights[name], tensor, rtol=tolerance, atol=tolerance)
    assert weights["backbone.layers.1.num_batches_tracked"] == 2 * len(before.sampler) + 1


def test_class_weights_of_wrapped_losses_are_found_with_their_columns():
    loss = LevelledLoss([MemVir(NormSoftmax(5, 4), 1, 0), NormSoftmax(5, 3)], [4, 3], [1.0, 1.0])
    found = [(tuple(own.weights.shape), own.first, own.columns) for own in find_class_weights(loss)]
    assert found == [((5, 4), 0, slice(0, 4)), ((5, 3), 0, slice(4, 7))]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.TripletMarginLoss(), "has no class weights"),
        (SoftTriple(5, 4, centers_per_class=3), "has 15 class weights for 5 classes"),
    ],
)
def test_a_loss_without_one_class_weight_a_class_is_refused(loss, message):
    with pytest.raises(DmlError, match=message):
        check_initialisation(Initialisation(class_weights="class-means"), loss, 5)
    check_initialisation(Initialisation(), loss, 5)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"initialisation": {"class_weights": "means"}}, "initialisation.class_weights is 'means'"),
        (
            {"initialisation": {"adapt_batch_norm": 1.0}, "training": {"freeze_batch_norm": True}},
            "adapt_batch_norm is given and training.freeze_batch_norm is true",
        ),
        (
            {
                "initialisation": {"class_weights": "class-means"},
                "backbone": TWO_LEVELS,
                "embedding": {"levels": ["block1"]},
            },
            "'class-means' and embedding.levels is given; use only one",
        ),
    ],
)
def test_a_contradiction_is_refused(tiny_document, registry, tables, message):
    with pytest.raises(InvalidOption, match=message):
        parse(tiny_document(**tables), registry)

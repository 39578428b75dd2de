"""Multiple depths of a backbone in an embedding: heads and losses of levels. test_resuming.py tests
resuming.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from dml_core import DmlError, InvalidOption
from dml_train.measure.evaluate import Embedded, select_levels
from dml_train.networks.model import EmbeddingHead, LevelledHead, LevelledLoss
from dml_train.recipe.checking import parse
from dml_train.recipe.tables import Embedding
from dml_train.trained.evaluation import evaluate_run
from dml_train.training.build import build
from dml_train.training.run import read_recipe, train

TABLES = {
    "backbone": {
        "name": "small-conv",
        "widths": [8, 16],
        "norm": "group",
        "levels": ["block1", "block2"],
    },
    "loss": {"noise": 0.0},
}


@pytest.fixture
def levelled(tiny_document, registry):
    """Parse a recipe with 2 levels; see `tiny_document` for the arguments."""

    def make(**tables):
        return parse(tiny_document(**TABLES, **tables), registry)

    return make


def test_a_levels_part_of_the_embedding_is_its_own_heads_output():
    torch.manual_seed(0)
    heads = [EmbeddingHead(8, 3), EmbeddingHead(16, 2, "max")]
    head = LevelledHead(heads)
    features = torch.rand(4, 8, 5, 5), torch.rand(4, 16, 2, 2)
    parts = [one(each) for one, each in zip(heads, features, strict=True)]
    torch.testing.assert_close(head.train()(features), torch.cat(parts, dim=1), rtol=0, atol=0)
    units = torch.split(head.eval()(features), head.dims, dim=1)
    for unit, part in zip(units, parts, strict=True):
        torch.testing.assert_close(unit, part / part.norm(dim=1, keepdim=True))
    assert (head.dims, head.embedding_dim) == ([3, 2], 5)


def test_the_loss_is_the_weighted_sum_of_each_levels_loss_of_its_own_part():
    losses = [nn.MultiMarginLoss(), nn.MultiMarginLoss(p=2)]
    rows, labels = torch.randn(6, 7, requires_grad=True), torch.arange(6) % 3
    value = LevelledLoss(losses, [4, 3], [0.5, 2.0])(rows, labels)
    expected = 0.5 * losses[0](rows[:, :4], labels) + 2.0 * losses[1](rows[:, 4:], labels)
    torch.testing.assert_close(value, expected)
    (gradient,) = torch.autograd.grad(value, rows)
    (expected_gradient,) = torch.autograd.grad(expected, rows)
    torch.testing.assert_close(gradient, expected_gradient)


def test_one_value_applies_to_all_levels_and_a_list_to_each(levelled, registry):
    one = build(levelled(embedding={"dim": 6}), registry)
    assert one.model.head.dims == [6, 6]
    assert one.loss.weights == [1.0, 1.0]
    each = build(
        levelled(embedding={"dim": [6, 4], "pooling": ["max", "gem"], "level_weight": [1.0, 0.5]}),
        registry,
    )
    assert each.model.head.dims == [6, 4]
    assert [tuple(level.class_weights.shape) for level in each.loss.levels] == [(6, 6), (6, 4)]
    assert each.loss.weights == [1.0, 0.5]
    assert type(each.model.head.levels[1].pool).__name__ == "GeM"


def test_a_schedule_of_the_loss_moves_the_loss_of_each_level_or_of_the_named_one(
    levelled, registry
):
    line = {"kind": "linear", "start": 4.0, "end": 8.0, "length": 10}
    experiment = build(levelled(schedule={"loss.scale": line}), registry)
    assert experiment.schedules.apply(5) == {"loss.levels.0.scale": 6.0, "loss.levels.1.scale": 6.0}
    assert [level.scale for level in experiment.loss.levels] == [6.0, 6.0]
    constant = {"kind": "constant", "value": 7.0}
    experiment = build(levelled(schedule={"loss.levels.1.scale": constant}), registry)
    experiment.schedules.apply(0)
    assert [level.scale for level in experiment.loss.levels] == [4.0, 7.0]
    first, second = experiment.loss.levels
    assert not torch.equal(first.class_weights, second.class_weights)


@pytest.mark.parametrize(
    ("embedding", "message"),
    [
        (
            {"dim": [4, 4, 4]},
            r"embedding.dim is \[4, 4, 4\]; expected one value for all, or a list of 2",
        ),
        (
            {"pooling": ["max"]},
            r"embedding.pooling is \['max'\]; .* a list of 2: the backbone has 2 levels",
        ),
        ({"level_weight": [1.0, 2.0, 3.0]}, r"embedding.level_weight is \[1.0, 2.0, 3.0\]"),
    ],
    ids=str,
)
def test_a_list_of_another_length_is_refused(levelled, registry, embedding, message):
    with pytest.raises(InvalidOption, match=message):
        build(levelled(embedding=embedding), registry)


def test_some_levels_are_a_part_of_the_embedding_of_all(levelled, registry, tmp_path, quiet):
    """All levels must be trained, so that both runs will have the same weights."""
    whole = train(
        levelled(embedding={"dim": [6, 4]}), tmp_path / "whole", registry=registry, console=quiet
    )
    some = {"dim": [6, 4], "levels": ["block2"]}
    second = train(levelled(embedding=some), tmp_path / "second", registry=registry, console=quiet)
    complete = Embedded.read(whole)
    np.testing.assert_array_equal(np.load(second.embeddings()), complete.embeddings[:, 6:])
    recipe = read_recipe(whole, registry)
    np.testing.assert_array_equal(
        select_levels(complete, recipe, ["block2"]).embeddings, complete.embeddings[:, 6:]
    )
    swapped = select_levels(complete, recipe, ["block2", "block1"]).embeddings
    np.testing.assert_array_equal(swapped, np.roll(complete.embeddings, 4, axis=1))
    alone = json.loads(second.evaluation.read_text())["recall@1"]
    assert evaluate_run(whole.path, levels=["block2"], registry=registry)["recall@1"] == alone


def test_the_levels_of_a_gallery_are_cut_like_those_of_the_queries(levelled):
    rows = np.arange(32, dtype=np.float32).reshape(2, 16)
    cut = select_levels(Embedded(rows, np.zeros(2), rows + 1, np.zeros(2)), levelled(), ["block2"])
    assert cut.gallery is not None
    np.testing.assert_array_equal(cut.gallery, rows[:, 8:] + 1)


def test_an_unknown_level_of_an_embedding_is_named(levelled, tiny_document, registry):
    embedded = Embedded(np.zeros((2, 16)), np.zeros(2))
    message = r"no level 'block3'; did you mean 'block[12]'\? levels: block1, block2"
    with pytest.raises(DmlError, match=message):
        select_levels(embedded, levelled(), ["block3"])
    with pytest.raises(DmlError, match="no level 'block1'; levels: only one, without a name"):
        select_levels(embedded, parse(tiny_document(), registry), ["block1"])
    with pytest.raises(
        InvalidOption,
        match=(
            r"embedding.levels names 'block3'; expected names from backbone.levels: block1, "
            r"block2"
        ),
    ):
        levelled(embedding={"levels": ["block3"]})
    with pytest.raises(InvalidOption, match=r"expected names from backbone.levels: it is empty"):
        parse(tiny_document(embedding={"levels": ["block1"]}), registry)
    with pytest.raises(InvalidOption, match="expected distinct levels"):
        levelled(embedding={"levels": ["block1", "block1"]})


def test_values_that_do_not_fit_the_levels_of_the_backbone_are_refused(levelled, registry):
    recipe = levelled(embedding={"dim": [8, 16], "linear": False})
    assert build(recipe, registry).model.head.dims == [8, 16]
    message = r"embedding\.linear is false and embedding\.dim is 8; expected 16"
    with pytest.raises(InvalidOption, match=message):
        build(levelled(embedding={"dim": 8, "linear": False}), registry)
    with pytest.raises(InvalidOption, match="the backbone has 1 level "):
        Embedding(dim=[4, 4]).of_levels(1)
    with pytest.raises(InvalidOption, match=r"level_weight is 0.5.*only one level"):
        Embedding(level_weight=0.5).of_levels(1)


@pytest.mark.parametrize(
    ("embedding", "message"),
    [
        ({"dim": [4, 0]}, "embedding.dim.1 is 0: input should be greater than or equal to 1"),
        ({"pooling": ["max", "mean"]}, "embedding.pooling.1 is 'mean': input should be 'average'"),
        ({"level_weight": -1.0}, "embedding.level_weight is -1.0"),
    ],
    ids=str,
)
def test_a_wrong_value_is_reported_once_with_its_key(levelled, embedding, message):
    with pytest.raises(DmlError, match=message) as caught:
        levelled(embedding=embedding)
    assert len(str(caught.value).splitlines()) == 1

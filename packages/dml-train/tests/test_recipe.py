"""Recipes: reading, --set, defaults, and errors that name the key, the given value and the expected
value.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import tomli_w

from dml_core import DmlError, InvalidOption
from dml_train.recipe.checking import parse
from dml_train.recipe.loading import load_recipe
from dml_train.recipe.tables import differences

PAGE = Path(__file__).parents[3] / "docs/reference/recipe-tables.md"


@pytest.fixture
def file(tmp_path, tiny_document):
    def write(**tables):
        path = tmp_path / "recipe.toml"
        path.write_text(tomli_w.dumps(tiny_document(**tables)))
        return path

    return write


def test_a_resolved_recipe_is_read_back_unchanged(file, registry):
    first = load_recipe(file(schedule={"optimizer.lr": {"kind": "cosine", "end": 0}}), [], registry)
    again = parse(tomllib.loads(first.to_toml()), registry)
    assert again == first
    assert differences(first.to_dict(), again.to_dict()) == []


def test_defaults_of_tables_and_of_factories_are_filled_in(file, registry):
    resolved = load_recipe(file(), [], registry).to_dict()
    assert resolved["training"]["precision"] == "float32"
    assert resolved["loss"] == {"name": "tiny", "scale": 4.0, "noise": 0.1}
    assert resolved["evaluation"]["metrics"] == ["recall@1"]
    assert "seed" not in resolved["sampler"]  # the trainer passes the seed


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("loss.scale=32", ("loss", "scale"), 32.0),
        ("training.precision=bfloat16", ("training", "precision"), "bfloat16"),
        ('training.precision="bfloat16"', ("training", "precision"), "bfloat16"),
        ('evaluation.metrics=["mrr", "map"]', ("evaluation", "metrics"), ["mrr", "map"]),
        ("training.channels_last=true", ("training", "channels_last"), True),
        ('schedule."optimizer.lr".end=0.5', ("schedule", "optimizer.lr", "end"), 0.5),
    ],
)
def test_set_reads_values_as_toml_or_else_as_strings(file, registry, override, path, value):
    found = load_recipe(
        file(), ['schedule."optimizer.lr".kind=cosine', override], registry
    ).to_dict()
    for key in path:
        found = found[key]
    assert found == value
    assert type(found) is type(value)


def test_set_of_a_table_replaces_the_previous_one(file, registry):
    found = load_recipe(
        file(), ["loss.scale=32", 'loss={name="tiny", noise=0.2}'], registry
    ).to_dict()
    assert found["loss"] == {"name": "tiny", "scale": 4.0, "noise": 0.2}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss.scael=32"], r"loss 'tiny' .* has no option 'scael'; did you mean 'scale'\?"),
        (["loss.scale=true"], "option 'scale' is True, of type bool"),
        (["loss.name=tinny"], r"unknown loss 'tinny'; did you mean 'tiny'\?"),
        (["training.stepz=3"], r"table \[training\] has no key 'stepz'; did you mean 'steps'\?"),
        (["steps=3"], r"a recipe has no key 'steps'; did you mean 'training.steps'\?"),
        (["noise=3"], r"a recipe has no key 'noise'; keys: training"),
        (["trianing.steps=3"], r"a recipe has no key 'trianing'; did you mean 'training'\?"),
        (["loss=other"], r"loss is 'other'; expected a table: loss=\{name=\"other\"\}"),
        (["training=3"], r"training is 3; expected a table$"),
        (["training.steps=many"], "training.steps is 'many': input should be a valid integer"),
        (["training.epochs=3"],
         r"\[training\]: steps = 12 and epochs = 3.0 given; expected exactly one"),
        (["embedding.pooling=mean"],
         "embedding.pooling is 'mean': input should be 'average', 'max', 'both' or 'gem'"),
        (["optimizer.lr=-1"], "optimizer.lr is -1: input should be greater than or equal to 0"),
        (["training.steps"], "'training.steps': expected KEY=VALUE"),
        (["a b=3"], "is not a dotted TOML key"),
        (["training.seed.deep=3"], "'seed' is 3 in the recipe, not a table"),
        (["loss.scale=32\nx=1"], "expected a key and a value"),
        (["optimizer.lr_multipliers.hed=10"],
         r"\[optimizer.lr_multipliers\] has no key 'hed'; did you mean 'head'"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_the_expected_value(file, registry, overrides, message):
    with pytest.raises(DmlError, match=message):
        load_recipe(file(), overrides, registry)


def test_mistakes_of_tables_names_and_options_are_listed_together(file, registry):
    overrides = [
        "training.stepz=3",
        "loss.name=tinny",
        "sampler.clases=3",
        'logging.loggers=[{name="jsnl"}]',
        "evaluation.recal_at=[1]",
        "training.seed=-1",
        "embedding.dim=0",
    ]
    with pytest.raises(DmlError) as caught:
        load_recipe(file(), overrides, registry)
    for part in (
        "'stepz'",
        "'tinny'",
        "'clases'",
        "'jsnl'",
        "'recal_at'",
        "training.seed is -1",
        "embedding.dim is 0",
    ):
        assert part in str(caught.value)


def test_a_missing_table_is_named(tiny_document, registry):
    document = tiny_document()
    del document["loss"]
    with pytest.raises(DmlError, match=r"the table \[loss\] is missing"):
        parse(document, registry)


def test_a_path_that_is_no_recipe_is_named(tmp_path, registry):
    (tmp_path / "photos").mkdir()
    (tmp_path / "bad.toml").write_text("[training\n")
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    for name, message in (
        ("photos", r"photos is a folder: to train on the images, .*dataset.root=.*photos"),
        ("none.toml", r"can't read the recipe .*none.toml: No such file"),
        ("bad.toml", r"bad\.toml is not TOML"),
        ("latin.toml", "is not UTF-8 text"),
    ):
        with pytest.raises(DmlError, match=message):
            load_recipe(tmp_path / name, [], registry)


def test_an_unknown_bundled_name_is_reported_with_the_nearest(registry):
    message = r"no recipe 'glyph-tiny'; did you mean 'glyphs-tiny'.*'dml recipes' lists"
    with pytest.raises(DmlError, match=message):
        load_recipe("glyph-tiny", [], registry)
    with pytest.raises(DmlError, match="did you mean 'memvir/arc-face-cub'"):
        load_recipe("memvir-arc-face-cub", [], registry)


def test_earlier_keys_of_metrics_are_errors_that_say_the_new_names(tiny_document, registry):
    table = {"recall_at": [1, 8], "nmi": True}
    expected = r"has 'recall_at' and 'nmi'; expected .*: metrics = \[\"recall@K\", \"nmi\"\]$"
    with pytest.raises(InvalidOption, match=expected):
        parse(tiny_document(evaluation=table), registry)


def test_every_key_is_described_once_and_the_reference_page_has_the_descriptions(dml):
    described = dml("recipes", "--keys").stdout
    assert "None" not in described
    assert "| `seed` | `0` | seed for all random choices |" in described
    assert described in PAGE.read_text(
        encoding="utf-8"
    )  # if not, paste the command's output into the page


def test_a_metric_that_selects_weights_must_be_measured(tiny_document, registry):
    selects = {"class_fraction": 0.5}
    with pytest.raises(
        InvalidOption, match=r"validation.metric is 'map@r'; evaluation.metrics: recall@1"
    ):
        parse(tiny_document(evaluation={"every": 1}, validation=selects), registry)
    metrics = ["recall@1", "map@r"]
    earlier = selects | {"metric": "map_at_r"}
    with pytest.raises(InvalidOption, match=r"'map_at_r'; did you mean 'map@r'\?"):
        parse(
            tiny_document(evaluation={"every": 1, "metrics": metrics}, validation=earlier), registry
        )
    for asked in (metrics, ["of another evaluator"]):
        parse(
            tiny_document(evaluation={"every": 1, "metrics": asked}, validation=selects), registry
        )
    parse(tiny_document(), registry)

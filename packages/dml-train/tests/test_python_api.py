"""The functions of `import dml_train`: all must resolve and be documented; a console should not be
needed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dml_train
from dml_core import DmlError

PAGE = Path(__file__).parents[3] / "docs/reference/python.md"


@pytest.mark.parametrize("name", [name for name in dml_train.__all__ if name != "__version__"])
def test_a_public_name_resolves_and_has_a_docstring_and_stands_on_its_page(name):
    assert getattr(dml_train, name).__doc__
    assert re.search(rf"`{name}\b", PAGE.read_text(encoding="utf-8"))
    assert name in dir(dml_train)


def test_overrides_are_texts_or_values_by_key():
    texts = dml_train.load_recipe("glyphs-tiny", ["training.steps=3", "loss.temperature=0.2"])
    values = dml_train.load_recipe("glyphs-tiny", {"training.steps": 3, "loss.temperature": 0.2})
    assert texts == values
    assert values.training.steps == 3
    message = r"can't set 'training.seed.x': 'seed' is 0 in the recipe, not a table"
    with pytest.raises(DmlError, match=message):
        dml_train.load_recipe("glyphs-tiny", {"training.seed.x": 3})
    with pytest.raises(
        TypeError, match=r"overrides is the string 'training.steps=3'; expected a list"
    ):
        dml_train.load_recipe("glyphs-tiny", "training.steps=3")


def test_a_finished_run_opens_with_its_metrics_and_an_unfinished_one_says_so(run, out, tmp_path):
    run()
    opened = dml_train.open_run(str(out))
    assert 0 <= opened.read_evaluation()["recall@1"] <= 1
    assert [line["step"] for line in opened.read_metrics() if "loss" in line] == [*range(1, 13)]
    opened.evaluation.unlink()
    with pytest.raises(DmlError, match=r"isn't finished: evaluation.json is missing"):
        opened.read_evaluation()


def test_wrong_names_are_reported_with_the_remedy(tmp_path):
    with pytest.raises(AttributeError, match="module 'dml_train' has no attribute 'trian'"):
        dml_train.trian  # noqa: B018
    with pytest.raises(
        TypeError, match=r"recipe is a str; expected a Recipe: use dml_train.load_recipe"
    ):
        dml_train.train("my-images", tmp_path / "run")
    with pytest.raises(DmlError, match="unknown data set 'cubs'; did you mean 'cub'"):
        dml_train.check_dataset("cubs", "anywhere")

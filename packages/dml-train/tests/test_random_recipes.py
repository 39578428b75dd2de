"""Random recipes, valid and not: `dml train` should begin the run, or print a message and not leave
a folder.
"""

from __future__ import annotations

import shutil

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from train_support.random_recipes import recipes, small_recipe

from dml_core import registry as installed
from dml_train import cli
from dml_train.recipe.tables import Recipe
from dml_train.training.trainer import Trainer

# The first example is slow because it draws the glyphs, and all examples share the fixtures.
in_one_folder = settings(
    max_examples=3 * settings.default.max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Begins(Exception):
    """Raised in place of the first step, when the run's folder has been made."""


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    """Call `dml train` up to the first step: return its message, or None if the run would begin."""

    def stop(self: Trainer) -> None:
        self.observers.close()
        raise Begins

    monkeypatch.setattr(Trainer, "train", stop)

    def attempt(text, *overrides):
        source, out = tmp_path / "recipe.toml", tmp_path / "run"
        source.write_text(text, encoding="utf-8")
        changes = [part for override in overrides for part in ("--set", override)]
        arguments = ["train", str(source), *changes, "--out", str(out)]
        try:
            result = CliRunner().invoke(
                cli.main, arguments, obj=installed(), catch_exceptions=False
            )
        except Begins:
            assert (out / "recipe.toml").is_file()
            shutil.rmtree(out)
            return None
        assert result.exit_code == 2, result.output
        assert not out.exists()
        return result.output

    return attempt


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # other libraries' classes, given odd options
@in_one_folder
@given(recipes(installed()))
def test_a_random_recipe_begins_or_is_one_message(attempt, text):
    message = attempt(text)
    assert message is None or (len(message.strip()) > len("error: ") and "Traceback" not in message)


@in_one_folder
@given(
    st.lists(
        st.text(max_size=30) | st.from_regex(r"(training|loss|schedule)\.[a-z_]{1,8}=.{0,8}"),
        min_size=1,
        max_size=2,
    )
)
def test_random_overrides_begin_or_are_one_message(attempt, overrides):
    message = attempt(Recipe.model_validate(small_recipe(installed())).to_toml(), *overrides)
    assert message is None or "Traceback" not in message


def test_the_unchanged_recipe_begins(attempt):
    assert attempt(Recipe.model_validate(small_recipe(installed())).to_toml()) is None

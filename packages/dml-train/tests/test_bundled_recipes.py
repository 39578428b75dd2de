"""Bundled recipes must be summarised, and the command should list and print the recipes."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from dml_train.cli import main
from dml_train.recipe.bundled import PAPERS, PRETRAINED, bundled_recipes, bundled_text, summary
from dml_train.recipe.extending import read_chain
from dml_train.studies.reproduce.paper import papers


@pytest.fixture
def listing(registry):
    """Call `dml recipes` to return the output."""

    def listing(*arguments):
        done = CliRunner().invoke(main, ["recipes", *arguments], obj=registry)
        assert done.exit_code == 0
        return done.output

    return listing


@pytest.mark.parametrize("name", bundled_recipes())
def test_every_recipe_begins_with_a_short_summary(name):
    said = summary(bundled_text(name))
    assert 20 < len(said) <= 160, said
    assert all(len(line) <= 120 for line in bundled_text(name).splitlines())


def test_a_summary_is_the_first_sentence_of_the_first_comment():
    assert summary("# One, and\n# two. Three.\n\n# Four.\n") == "One, and two"
    assert summary("[training]\n# One.\n") == ""


def test_the_command_lists_every_recipe_with_its_summary_and_no_parent_that_is_none(listing):
    """By default, the command lists general recipes; when given the name of a paper, the recipes of
    this paper.
    """
    listed = {}
    for group in ([], *([name] for name in (*PAPERS, PRETRAINED))):
        for line in listing(*group).splitlines():
            name, _, text = line.strip().partition("  ")
            listed[name] = text.strip()
    assert {name: text for name, text in listed.items() if name in bundled_recipes()} == {
        name: summary(bundled_text(name)) for name in bundled_recipes()
    }
    assert not [name for name in bundled_recipes() if name.rpartition("/")[2].startswith("_")]
    assert [source.name for source in read_chain("ice/glyphs")] == ["ice/glyphs", "_glyphs"]


def test_the_list_is_short_and_begins_with_the_users_own_images(listing):
    lines = listing().splitlines()
    assert lines[1].strip().startswith("my-images")
    assert len(lines) < 25
    for paper in (*PAPERS, PRETRAINED):
        count = sum(name.startswith(f"{paper}/") for name in bundled_recipes())
        assert any(line.split()[:3] == [paper, str(count), "recipes"] for line in lines)


def test_the_papers_are_those_of_the_folders_and_of_the_tables():
    folders = {name.partition("/")[0] for name in bundled_recipes() if "/" in name}
    assert PAPERS.keys() | {PRETRAINED} == folders
    assert {name: paper.title for name, paper in papers().items()} == PAPERS


def test_the_command_prints_one_recipe_as_it_was_written(listing):
    assert listing("glyphs-tiny") == bundled_text("glyphs-tiny")

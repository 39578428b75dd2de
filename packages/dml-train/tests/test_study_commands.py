"""`--list-commands`: when these commands and then the study are run, the report must match a single
process.
"""

from __future__ import annotations

import json
import shlex

import pytest
import tomli_w

from dml_core import DmlError
from dml_train.recipe.checking import parse
from dml_train.studies.runs import Job, list_commands


@pytest.fixture
def recipe(tiny_document, tmp_path):
    """Write a recipe's file."""
    document = tiny_document(
        training={"steps": 2},
        dataset={"num_classes": 8},
        evaluation={"every": 2, "unit": "step", "metrics": ["recall@1", "map@r"]},
        validation={"class_fraction": 0.5},
        logging={"loggers": []},
    )
    path = tmp_path / "a recipe.toml"
    path.write_text(tomli_w.dumps(document))
    return path


def without_seconds(path):
    text = json.loads(path.read_text())
    for trial in text.get("trials", ()):
        assert trial.pop("seconds") > 0
    return text


@pytest.mark.parametrize(
    ("study", "page", "runs"),
    [
        ("protocol mlrc RECIPE", "mlrc.json", 4),
        ("tune RECIPE --range optimizer.lr=1e-3:1e-1:log --trials 2 --folds 2", "tuning.json", 4),
    ],
    ids=["protocol", "tune"],
)
def test_runs_done_one_by_one_give_the_report_of_one_process(
    dml, recipe, tmp_path, study, page, runs
):
    study = [str(recipe) if word == "RECIPE" else word for word in study.split()]
    dml(*study, "--out", tmp_path / "whole")
    here = [*study, "--out", tmp_path / "listed runs"]
    listed = dml(*here, "--list-commands")
    assert listed.stderr.endswith(f"{runs} runs to do, 0 finished\n")
    assert dml(*here, "--list-commands").stdout == listed.stdout
    commands = [shlex.split(line) for line in listed.stdout.splitlines()]
    assert len(commands) == runs
    for command in reversed(commands[1:]):
        assert command[0] == "dml"
        dml(*command[1:])
    assert dml(*here, "--list-commands").stdout.splitlines() == listed.stdout.splitlines()[:1]
    dml(*commands[0][1:])
    dml(*commands[0][1:])  # the command of a finished run can be repeated
    assert dml(*here, "--list-commands").stdout == ""
    dml(*here)
    assert without_seconds(tmp_path / "listed runs" / page) == without_seconds(
        tmp_path / "whole" / page
    )


def test_a_folder_of_another_run_is_refused_before_anything_is_listed(
    tiny_document, registry, tmp_path
):
    recipes = [parse(tiny_document(training={"steps": steps}), registry) for steps in (2, 3)]
    jobs = [Job("run", recipe, tmp_path / "run") for recipe in recipes]
    assert len(list_commands([jobs[0]])) == 1
    with pytest.raises(DmlError, match=r"the recipe differs.*\n  training\.steps: 2 there, 3 here"):
        list_commands([jobs[1]])

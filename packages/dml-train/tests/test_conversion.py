"""Checkpoints converted between their forms: the same run afterwards, and nothing lost on the way."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from train_support.tiny_world import make_registry

from dml_core import DmlError
from dml_train import cli
from dml_train.files import FolderLocked, WriteRefused
from dml_train.recipe.checking import parse
from dml_train.run_folder import RunFolder
from dml_train.trained.evaluation import embed_split
from dml_train.trained.model import open_model
from dml_train.training import conversion
from dml_train.training.checkpoint import STATE, intact, newest_intact
from dml_train.training.conversion import convert_checkpoints
from dml_train.training.run import evaluated_checkpoint, train
from dml_train.training.saving import write


@pytest.fixture
def run(tmp_path):
    """Make a run's folder with two checkpoints, whose class weights have 240 kB."""
    folder = RunFolder.create(tmp_path / "run")
    folder.recipe.touch()
    for step in (1, 2):
        weights = torch.full((1000, 60), float(step))
        state = {
            "loss": {"levels.0.class_weights": weights, "calls": torch.tensor(step)},
            "optimizer": {
                "state": {0: {"step": torch.tensor(3.0), "exp_avg": weights + 1}},
                "param_groups": [],
            },
            "best": {"step": 1},
        }
        write(folder.checkpoints, step, {"a": torch.zeros(3)}, state)
    return folder


def contents(folder):
    return {
        str(path.relative_to(folder.path)): path.read_bytes()
        for path in folder.path.rglob("*")
        if path.is_file() and not path.name.endswith(".lock")
    }


def test_a_conversion_and_back_gives_the_same_bytes(run):
    before = contents(run)
    assert convert_checkpoints(run.path, "parts") == [c.path for c in intact(run.checkpoints)]
    after = contents(run)
    assert sum("rank-00000-of-00001" in name for name in after) == 2
    assert not any(name.endswith(f"2/{STATE}") for name in after)
    assert (
        max(len(after[name]) for name in after if name.endswith(STATE)) < 10_000
    )  # without the class weights
    assert evaluated_checkpoint(run).step == 1
    assert convert_checkpoints(run.path, "parts") == []
    convert_checkpoints(run.path, "whole")
    assert contents(run) == before


@pytest.mark.parametrize("form", ["parts", "whole"])
def test_a_killed_conversion_leaves_the_checkpoint_and_can_be_repeated(run, monkeypatch, form):
    other = {"parts": "whole", "whole": "parts"}[form]
    expected = contents(run) if form == "whole" else None
    convert_checkpoints(run.path, other)

    def kill(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(conversion, "write_manifest", kill)
        with pytest.raises(KeyboardInterrupt):
            convert_checkpoints(run.path, form)
    assert [(c.step, c.form) for c in intact(run.checkpoints)] == [(2, other), (1, other)]
    convert_checkpoints(run.path, form)
    assert [(c.step, c.form) for c in intact(run.checkpoints)] == [(2, form), (1, form)]
    if expected is not None:
        assert contents(run) == expected


@pytest.mark.parametrize("form", ["parts", "whole"])
def test_a_full_disk_leaves_the_checkpoint(run, small_files, form):
    convert_checkpoints(run.path, {"parts": "whole", "whole": "parts"}[form])
    before = contents(run)
    with (
        small_files(100_000),
        pytest.raises(WriteRefused, match=r"step-00000002: .* the checkpoint is unchanged"),
    ):
        convert_checkpoints(run.path, form)
    assert contents(run) == before


def test_what_can_not_be_converted_is_refused(run, tmp_path):
    with run.lock(), pytest.raises(FolderLocked):
        convert_checkpoints(run.path, "parts")
    write(run.checkpoints, 3, {"a": torch.zeros(3)}, {"loss": {}, "optimizer": {}})
    with pytest.raises(DmlError, match="has no class weights; only they are written in parts"):
        convert_checkpoints(run.path, "parts")
    shutil.rmtree(run.checkpoints)
    with pytest.raises(DmlError, match="holds no intact checkpoint to convert"):
        convert_checkpoints(run.path, "whole")
    with pytest.raises(DmlError, match="is not a run's folder"):
        convert_checkpoints(tmp_path / "none", "whole")


def test_a_converted_run_is_used_and_resumed_as_before(tiny_registry, tiny_document, tmp_path, quiet):
    tables = {
        "evaluation": {"every": 4, "unit": "step"},
        "validation": {"class_fraction": 0.34, "metric": "recall@1"},
    }
    recipe = parse(tiny_document(**tables), tiny_registry)
    whole = train(recipe, tmp_path / "whole", registry=tiny_registry, console=quiet)
    parts = shutil.copytree(whole.path, tmp_path / "parts")
    command = ["checkpoint", str(parts), "--form", "parts"]
    result = CliRunner().invoke(cli.main, command, obj=make_registry())
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [str(c.path) for c in intact(parts / "checkpoints")]
    again = CliRunner().invoke(cli.main, command, obj=make_registry())
    assert (again.stdout, again.exit_code) == ("", 0)

    images = torch.zeros(2, 1, 4, 4)
    one, other = (open_model(run, tiny_registry).embed(images) for run in (whole.path, parts))
    np.testing.assert_array_equal(one, other)
    one, other = (embed_split(run, registry=tiny_registry)[0] for run in (whole.path, parts))
    np.testing.assert_array_equal(one, other)

    longer = parse(tiny_document(**tables, training={"steps": 20}), tiny_registry)
    for run in (whole.path, parts):
        train(longer, run, resume=True, force=True, registry=tiny_registry, console=quiet)
    one, other = (newest_intact(run / "checkpoints") for run in (whole.path, parts))
    assert one.form == other.form == "whole"
    assert (one.path / STATE).read_bytes() == (other.path / STATE).read_bytes()

"""If a write of a command fails, the command prints one message, must not damage files, and can be
resumed.

The kernel limits the size of files, so that writes fail as on a full disk. Set ``DML_DISKS=100`` to
try 100 sizes.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from click.testing import CliRunner
from train_support.photo_world import photo_document
from train_support.tiny_world import make_document, make_registry

from dml_train import cli, report
from dml_train.studies.reproduce import paper as papers_of
from dml_train.studies.reproduce import run as reproduction
from dml_train.studies.reproduce.paper import Paper
from dml_train.training import checkpoint

SIZES = int(os.environ.get("DML_DISKS", "3"))
# Files that must be identical to those of an uninterrupted command; other result files contain
# times.
RESULTS = ["metrics.jsonl", "evaluation.json", "pixels", "best.toml"]
LASTING = [*RESULTS, "model.safetensors", "state.pt", "*.npy"]
COMMANDS = ["train", "embed", "embed --split", "pack", "tune", "reproduce"]
SELECTS = {
    "evaluation": {"every": 5, "unit": "step"},
    "validation": {"class_fraction": 0.34, "metric": "recall@1"},
}


@pytest.fixture(scope="module")
def inputs(photo_run):
    """Return a folder with a run and the images that it was trained on."""
    return photo_run.parent


@pytest.fixture
def call(inputs, monkeypatch):
    """Call a command that writes into a folder, but skip reports, which take most of the time."""
    monkeypatch.setattr(report, "write_report", lambda path, registry: path)
    for module in (papers_of, reproduction):
        monkeypatch.setattr(module, "papers", lambda: {"fake": fake_paper(inputs)})

    def call(name, out, resume=False):
        photos, again = inputs / "data", ["--resume"] * resume
        arrays = ["--out", f"{out}/e.npy", "--labels", f"{out}/l.npy"]
        if name == "train":
            arguments = [
                write_recipe(inputs, name, make_document(**SELECTS)),
                "--out",
                f"{out}/deep/run",
                *again,
            ]
        elif name == "embed":
            arguments = [f"{inputs}/run", photos, *arrays]
        elif name == "embed --split":
            name, arguments = "embed", [f"{inputs}/run", "--split", "train", *arrays]
        elif name == "pack":
            recipe, cache = (
                write_recipe(inputs, name, photo_document(photos)),
                f"dataset.cache={out}/cache",
            )
            name, arguments = "train", [recipe, "--out", f"{out}/run", "--set", cache, *again]
        elif name == "tune":
            recipe = write_recipe(inputs, name, make_document(**SELECTS, training={"steps": 5}))
            choice = ["--choice", "loss.scale=[2.0,4.0]", "--trials", "2"]
            arguments = [recipe, *choice, "--out", f"{out}/search"]
        elif name == "reproduce":
            arguments = ["fake/table-2", "--out", f"{out}/out"]
        else:
            name, arguments = "data", ["fetch", "sop", "--root", f"{out}/sop"]
        return CliRunner().invoke(cli.main, [name, *map(str, arguments)], obj=make_registry())

    return call


def write_recipe(inputs, name, document):
    """Write a recipe before the size of files is limited; return the path."""
    path = inputs / f"{name}.toml"
    if not path.is_file():
        path.write_text(tomli_w.dumps(document))
    return str(path)


def fake_paper(inputs):
    """Make a paper; the table has 2 rows."""
    rows = [
        {"label": str(scale), "set": [f"loss.scale={scale}"], "published": {}}
        for scale in (2.0, 4.0)
    ]
    recipe = write_recipe(inputs, "reproduce", make_document(training={"steps": 2}))
    table = {
        "title": "scale",
        "expected": "more is more",
        "recipes": {"glyphs": recipe},
        "rows": rows,
    }
    about = {"title": "Fake", "backbone": "big", "selected_on_test": True, "selection": "best of 7"}
    tables = {"table-2": {**table, "metrics": {"sop": ["recall@1"]}}}
    return Paper.model_validate({**about, "tables": tables})


def lasting(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for pattern in LASTING
        for path in folder.rglob(pattern)
        if not path.name.startswith(".")
    }


def check_intact(folder):
    """Check that all files in a folder are complete."""
    for path in folder.rglob("*"):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue  # a temporary file, which may be incomplete
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".npy":
            np.load(path)
        elif path.name == "checkpoints":
            assert not checkpoint.corrupt(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_at_any_write_is_one_message_and_the_command_resumes(
    tmp_path, call, name, small_files
):
    whole, disk = tmp_path / "whole", tmp_path / "disk"
    whole.mkdir()
    assert call(name, whole).exit_code == 0
    expected = lasting(whole)
    largest = max(path.stat().st_size for path in whole.rglob("*") if path.is_file())
    refused = 0
    for size in np.geomspace(16, largest - 1, SIZES).astype(int).tolist():
        disk.mkdir()
        with small_files(size):
            result = call(name, disk)
        if result.exit_code:
            refused += 1
            assert isinstance(result.exception, SystemExit), (size, result.exception)
            assert (
                "File too large" in result.output or "can't save the checkpoint" in result.output
            ), size
            if result.exit_code == 2:
                message = result.stderr.splitlines()[-1]
                assert message.startswith("error: "), (size, message)
                assert str(disk) in message, (size, message)
            check_intact(disk)
            result = call(name, disk, resume=True)
        assert result.exit_code == 0, (size, result.output)
        assert lasting(disk) == expected, size
        assert not [path for path in disk.rglob(".*") if not path.name.endswith(".lock")], size
        shutil.rmtree(disk)
    assert refused >= 2


@pytest.mark.skipif(not Path("/sys").is_dir(), reason="needs /sys, in which even root can't write")
@pytest.mark.parametrize("name", [*COMMANDS, "data fetch"])
def test_a_folder_that_refuses_every_write_is_one_message(call, name):
    result = call(name, Path("/sys"))
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.stderr.splitlines()[-1].startswith("error: can't"), result.stderr
    assert "/sys" in result.stderr.splitlines()[-1]

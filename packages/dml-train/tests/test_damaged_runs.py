"""Folders of runs whose files are damaged, although the checksums match: one message each, never a raw error."""

from __future__ import annotations

import hashlib
import json
import shutil
from io import StringIO

import pytest
import safetensors.torch
import torch
from rich.console import Console
from train_support.tiny_world import make_document, make_registry

from dml_core import DmlError
from dml_train.recipe.checking import parse
from dml_train.report.page import write_report
from dml_train.trained.model import open_model
from dml_train.trained.splits import embed_split, evaluate_run
from dml_train.training.run import train

WEIGHTS, STATE = "model.safetensors", "state.pt"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    registry = make_registry()
    train(parse(make_document(), registry), out, registry=registry, console=Console(file=StringIO()))
    return out


@pytest.fixture
def damaged(finished, tmp_path):
    """Copy the run, change one file of its newest checkpoint, and correct the manifest."""

    def damage(name, change):
        run = shutil.copytree(finished, tmp_path / "run")
        for checkpoint in (run / "checkpoints").iterdir():
            file = checkpoint / name
            change(file)
            manifest = json.loads((checkpoint / "manifest.json").read_text())
            content = file.read_bytes()
            manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            (checkpoint / "manifest.json").write_text(json.dumps(manifest))
        return run

    return damage


def empty(file):
    file.write_bytes(b"")


def halve(file):
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def scramble(file):
    file.write_bytes(bytes((7 * i) % 256 for i in range(4000)))


def of_another_network(file):
    safetensors.torch.save_file({"other": torch.zeros(3)}, file)


def with_a_giant_header(file):
    file.write_bytes((2**62).to_bytes(8, "little") + b"{}")


def of_wrong_shapes(file):
    weights = safetensors.torch.load_file(file)
    safetensors.torch.save_file(
        {name: tensor.flatten()[:1].clone() for name, tensor in weights.items()}, file
    )


def foreign(file):
    torch.save({"epoch": 3}, file)


def a_list(file):
    torch.save([1, 2], file)


def without_best(file):
    state = torch.load(file, weights_only=True)
    torch.save({**state, "best": 3}, file)


def with_an_empty_optimizer(file):
    state = torch.load(file, weights_only=True)
    torch.save({**state, "optimizer": {}, "loss": {}}, file)


def message_of(use):
    """Return the message of a DmlError; None without an error. Any other error fails the test."""
    try:
        use()
    except DmlError as error:
        return str(error)
    return None


DAMAGE = [
    *(
        (WEIGHTS, change)
        for change in (empty, halve, scramble, of_another_network, with_a_giant_header, of_wrong_shapes)
    ),
    *(
        (STATE, change)
        for change in (empty, halve, scramble, foreign, a_list, without_best, with_an_empty_optimizer)
    ),
]


@pytest.mark.parametrize(("name", "change"), DAMAGE, ids=lambda part: getattr(part, "__name__", part))
def test_a_damaged_checkpoint_is_one_message(damaged, tiny_registry, tiny_document, quiet, name, change):
    run = damaged(name, change)
    recipe = parse(tiny_document(), tiny_registry)
    uses = [
        lambda: open_model(run, tiny_registry),
        lambda: embed_split(run, registry=tiny_registry),
        lambda: train(recipe, run, resume=True, registry=tiny_registry, console=quiet),
    ]
    (run / "evaluation.json").unlink()
    messages = [message for use in uses if (message := message_of(use)) is not None]
    assert messages
    assert max(map(len, messages)) < 1000


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("evaluation.json", b""),
        ("evaluation.json", b"[1, 2]"),
        ("evaluation.json", b"[" * 100_000),
        ("evaluation.json", b"\xff\xfe"),
        ("recipe.toml", b"a = " + b"[" * 100_000),
        ("recipe.toml", b"\xff"),
        ("recipe.toml", b"[training]\nsteps = 3"),
        ("embeddings.npy", b"\x93NUMPY"),
        ("labels.npy", b""),
    ],
    ids=lambda part: part if isinstance(part, str) else str(part[:12]),
)
def test_a_damaged_file_of_a_run_is_one_message(finished, tiny_registry, tmp_path, quiet, file, content):
    run = shutil.copytree(finished, tmp_path / "run")
    (run / file).write_bytes(content)
    for use in (
        lambda: evaluate_run(run, registry=tiny_registry),
        lambda: write_report(run, registry=tiny_registry),
    ):
        message = message_of(use)
        assert message is None or file in message or "labels" in message


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "a\udcffb"], ids=["long", "nul", "not utf-8"])
def test_a_path_that_no_file_can_have_is_one_message(tiny_registry, tiny_document, tmp_path, quiet, name):
    recipe = parse(tiny_document(training={"steps": 1}), tiny_registry)
    for use in (
        lambda: open_model(tmp_path / name, tiny_registry),
        lambda: train(recipe, tmp_path / name, registry=tiny_registry, console=quiet),
    ):
        message_of(use)

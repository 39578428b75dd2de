"""When a run's files are damaged, the user gets a single message, even if the checksums match."""

from __future__ import annotations

import hashlib
import json
import shutil
from io import StringIO

import numpy as np
import pytest
import safetensors.torch
import torch
from rich.console import Console
from train_support.tiny_world import TinyEvaluator, make_document, make_registry

from dml_core import DmlError
from dml_train.files import read_json
from dml_train.recipe.checking import parse
from dml_train.report.page import write_report
from dml_train.run_folder import RunFolder
from dml_train.trained.evaluation import embed_split, evaluate_run
from dml_train.trained.leaks import find_leaks
from dml_train.trained.model import open_model
from dml_train.trained.search import Gallery
from dml_train.training.run import train

WEIGHTS, STATE = "model.safetensors", "state.pt"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    registry = make_registry()
    train(
        parse(make_document(), registry), out, registry=registry, console=Console(file=StringIO())
    )
    return out


@pytest.fixture
def damaged(finished, tmp_path):
    """Copy the run, change a file in all checkpoints, then correct the manifests."""

    def damage(name, change):
        run = shutil.copytree(finished, tmp_path / "run")
        for checkpoint in (run / "checkpoints").iterdir():
            file = checkpoint / name
            change(file)
            manifest = json.loads((checkpoint / "manifest.json").read_text())
            content = file.read_bytes()
            manifest["files"][name] = {
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
            }
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


def of_wrong_shapes(file):
    weights = safetensors.torch.load_file(file)
    first = {name: tensor.flatten()[:1].clone() for name, tensor in weights.items()}
    safetensors.torch.save_file(first, file)


def with_state(**changes):
    return lambda file: torch.save({**torch.load(file, weights_only=True), **changes}, file)


DAMAGE = {
    "half of the weights": (WEIGHTS, halve),
    "weights of another network": (
        WEIGHTS,
        lambda file: safetensors.torch.save_file({"other": torch.zeros(3)}, file),
    ),
    "a giant header": (
        WEIGHTS,
        lambda file: file.write_bytes((2**62).to_bytes(8, "little") + b"{}"),
    ),
    "weights of wrong shapes": (WEIGHTS, of_wrong_shapes),
    "an empty state": (STATE, empty),
    "a foreign state": (STATE, lambda file: torch.save({"epoch": 3}, file)),
    "a list": (STATE, lambda file: torch.save([1, 2], file)),
    "no best step": (STATE, with_state(best=3)),
    "an empty optimizer": (STATE, with_state(optimizer={}, loss={})),
}


def message_of(use):
    """Return the message of a DmlError; None if there is no error. Any other error will fail the
    test.
    """
    try:
        use()
    except DmlError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("name", "change"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_one_message(damaged, registry, tiny_document, quiet, name, change):
    run = damaged(name, change)
    recipe = parse(tiny_document(), registry)
    uses = [
        lambda: open_model(run, registry),
        lambda: embed_split(run, registry=registry),
        lambda: train(recipe, run, resume=True, registry=registry, console=quiet),
    ]
    (run / "evaluation.json").unlink()
    messages = [message for use in uses if (message := message_of(use)) is not None]
    assert messages
    assert max(map(len, messages)) < 1000


def flip_a_bit(file, place=-1):
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def change_a_digit(file):
    text = file.read_text()
    digit = next(i for i in range(len(text)) if text[i].isdigit())
    file.write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :])


@pytest.fixture
def intact(finished, tmp_path):
    """Copy the run."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.mark.parametrize("is_finished", [True, False], ids=["finished", "unfinished"])
def test_older_weights_never_replace_damaged_ones_in_silence(
    dml, intact, registry, tmp_path, is_finished
):
    if not is_finished:
        (intact / "evaluation.json").unlink()
    flip_a_bit(intact / "checkpoints" / "step-00000012" / WEIGHTS)
    out = tmp_path / "e.npy"
    error = dml("embed", intact, "--out", out, code=2).stderr
    assert f"step-00000012: {WEIGHTS} has a different SHA-256" in error
    assert error.endswith("Use the weights of an intact checkpoint instead: step 8 (--step)\n")
    assert not out.exists()
    for use in (open_model, embed_split, find_leaks):
        with pytest.raises(DmlError, match=r"step-00000012: .* step 8"):
            use(intact, registry=registry)
    dml("embed", intact, "--out", out, "--step", 8)
    assert open_model(intact, registry, step=8).step == 8
    expected, _ = embed_split(intact, step=8, registry=registry)
    assert np.array_equal(np.load(out), expected)
    with pytest.raises(DmlError, match=r"step-00000007: manifest.json is missing.* step 8"):
        open_model(intact, registry, step=7)


def test_a_step_is_evaluated_anew_and_its_weights_do_not_search_other_embeddings(intact, registry):
    metrics = [
        evaluate_run(intact, step=step, registry=registry).to_dict() for step in (None, 8, 12)
    ]
    assert (
        metrics[0]
        == metrics[2]
        == {key: read_json(intact / "evaluation.json")[key] for key in metrics[0]}
    )
    # The recall of few images can be the same in both steps, but the embeddings differ.
    of_steps = [embed_split(intact, step=step, registry=registry) for step in (8, 12)]
    assert not np.array_equal(of_steps[0][0], of_steps[1][0])
    assert [TinyEvaluator().evaluate(*of_step).to_dict() for of_step in of_steps] == metrics[1:]
    with pytest.raises(
        DmlError, match="embeddings of step 12, but the model has the weights of step 8"
    ):
        Gallery.of_run(open_model(intact, registry, step=8), registry)


def test_resuming_trains_again_from_the_last_intact_checkpoint(run, intact, finished):
    flip_a_bit(intact / "checkpoints" / "step-00000012" / WEIGHTS)
    run(intact, resume=True)
    for name in (
        "evaluation.json",
        "embeddings.npy",
        "manifest.json",
        f"checkpoints/step-00000012/{WEIGHTS}",
    ):
        assert (intact / name).read_bytes() == (finished / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("labels.npy", flip_a_bit),
        ("labels.npy", empty),
        ("labels.npy", lambda file: file.unlink()),
        ("embeddings.npy", flip_a_bit),
        ("per_query.npz", flip_a_bit),
        ("evaluation.json", change_a_digit),
        ("evaluation.json", lambda file: file.write_bytes(b"[" * 100_000)),
        ("manifest.json", scramble),
        ("manifest.json", lambda file: file.write_text("[1, 2]")),
        ("manifest.json", lambda file: file.write_text('{"files": {"labels.npy": 3}}')),
    ],
)
def test_changed_results_are_an_error_whose_command_writes_them_again(
    dml, intact, finished, registry, name, change
):
    change(intact / name)
    expected = f"Write it again: dml train {intact / 'recipe.toml'} --out {intact} --resume"
    readers = (
        [evaluate_run, write_report] if name in ("labels.npy", "embeddings.npy") else [write_report]
    )
    for use in readers if name != "per_query.npz" else []:  # test_per_query.py tests this file
        error = message_of(lambda: use(intact, registry=registry))  # noqa: B023
        assert str(intact / name) in error
        assert error.endswith(expected)
    dml("train", intact / "recipe.toml", "--out", intact, "--resume", "--no-report")
    for file in (
        "labels.npy",
        "embeddings.npy",
        "per_query.npz",
        "evaluation.json",
        "manifest.json",
    ):
        assert (intact / file).read_bytes() == (finished / file).read_bytes()


def test_changed_lines_or_a_missing_manifest_are_an_error_and_a_run_resumes_without_the_lines(
    dml, intact
):
    metrics = intact / "metrics.jsonl"
    change_a_digit(metrics)
    for command in (
        ("report", intact),
        ("train", intact / "recipe.toml", "--out", intact, "--resume"),
    ):
        error = dml(*command, code=2).stderr
        assert "metrics.jsonl has a different SHA-256 than the manifest says" in error
        assert "move it away to continue without its lines" in error
    manifest = (intact / "manifest.json").read_bytes()
    (intact / "manifest.json").unlink()
    assert "isn't finished: manifest.json is missing" in dml("report", intact, code=2).stderr
    (intact / "manifest.json").write_bytes(manifest)
    metrics.unlink()
    dml("train", intact / "recipe.toml", "--out", intact, "--resume", "--no-report")
    assert [line["step"] for line in RunFolder(intact).read_metrics()] == [12]


@pytest.mark.parametrize("content", [b"a = " + b"[" * 100_000, b"\xff", b"[training]\nsteps = 3"])
def test_a_damaged_recipe_of_a_run_is_one_message(intact, registry, content):
    (intact / "recipe.toml").write_bytes(content)
    for use in (evaluate_run, write_report):
        message = message_of(lambda: use(intact, registry=registry))  # noqa: B023
        assert "recipe.toml" in message or "labels" in message


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "a\udcffb"], ids=["long", "nul", "not utf-8"])
def test_a_path_that_no_file_can_have_is_one_message(
    registry, tiny_document, tmp_path, quiet, name
):
    recipe = parse(tiny_document(training={"steps": 1}), registry)
    for use in (
        lambda: open_model(tmp_path / name, registry),
        lambda: train(recipe, tmp_path / name, registry=registry, console=quiet),
    ):
        message_of(use)

"""The `dml` command: output and exit codes; files are not overwritten."""

from __future__ import annotations

import json
import signal
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Literal

import click
import numpy as np
import pytest

from dml_core import Component, DmlError, Plugins, hookimpl
from dml_train.demo import run_demo
from dml_train.processes.stopping import RunInterrupted


@pytest.fixture
def folder(run):
    return run(training={"steps": 4})


@pytest.mark.parametrize("finished", [True, False])
def test_eval_of_a_run_reproduces_its_evaluation(dml, folder, tmp_path, finished):
    expected = json.loads(folder.evaluation.read_text())["recall@1"]
    if not finished:  # use the newest checkpoint
        for path in (folder.evaluation, folder.embeddings(), folder.labels()):
            path.unlink()
    dml("eval", folder.path, "--out", tmp_path / "figures.json")
    assert json.loads((tmp_path / "figures.json").read_text())["recall@1"] == expected


def test_eval_evaluates_arrays_with_the_given_options(dml, tmp_path):
    np.save(tmp_path / "e.npy", np.array([[1, 0.1], [1, 0], [0, 1], [0.1, 1]]))
    np.save(tmp_path / "l.npy", np.array([0, 0, 1, 1]))
    out = tmp_path / "figures.json"
    metrics = 'evaluation.metrics=["recall@1", "recall@2"]'
    dml("eval", tmp_path / "e.npy", tmp_path / "l.npy", "--set", metrics, "--out", out)
    assert json.loads(out.read_text()) == {"recall@1": 1.0, "recall@2": 1.0, "ties": "index"}
    np.save(tmp_path / "gl.npy", np.array([1, 1, 0, 0]))
    out.unlink()
    dml("eval", tmp_path / "e.npy", tmp_path / "l.npy", "--gallery", tmp_path / "e.npy",
        "--gallery-labels", tmp_path / "gl.npy", "--out", out)  # fmt: skip
    assert json.loads(out.read_text())["recall@1"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["nothing"],
            "nothing doesn't exist; expected a run's folder, or embeddings (.npy) and their labels",
        ),
        (["e.npy"], "to evaluate embeddings, also give labels"),
        (["e.npy", "short.npy"], "can't evaluate: labels has shape (2,); expected (4,)"),
        (["e.npy", "none.npy"], "none.npy doesn't exist; expected labels (.npy)"),
        (["e.npy", "text.npy"], "can't read text.npy as a .npy file"),
        (["e.npy", "both.npz"], "both.npz is an archive of arrays; expected a .npy file"),
        (
            ["e.npy", "l.npy", "--gallery", "e.npy"],
            "gallery and gallery_labels must be given together",
        ),
        (
            ["e.npy", "l.npy", "--evaluator", "exat"],
            "unknown evaluator 'exat'; did you mean 'exact'?",
        ),
        (["e.npy", "l.npy", "--set", "evaluation.metric=1"], "did you mean 'metrics'?"),
        (
            ["e.npy", "l.npy", "--set", "metrics=[]"],
            "can't set 'metrics': dml eval changes only keys of the table",
        ),
        (["e.npy", "l.npy", "--groups", "short.npy"], "l.npy and short.npy: groups has shape (2,)"),
        (["e.npy", "l.npy", "--groups", "l.npy"], "TinyEvaluator only supports labels"),
        (["e.npy", "l.npy", "--gallery-groups", "l.npy"], "also give --gallery-labels"),
        (
            ["e.npy", "l.npy", "--evaluator", "exact", "--set", "evaluation.name=other"],
            "expected one of them",
        ),
        (["e.npy", "l.npy", "--out", "l.npy"], "l.npy exists already; nothing was touched"),
        (["e.npy", "l.npy", "--out", "no/such/file.json"], "no/such is not a folder"),
        (["."], "is not a run's folder: it has no recipe.toml"),
    ],
)
def test_errors_of_eval_are_one_message_and_exit_code_2(
    dml, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    np.save("e.npy", np.eye(4))
    np.save("l.npy", np.array([0, 0, 1, 1]))
    np.save("short.npy", np.array([0, 1]))
    np.savez("both.npz", e=np.eye(4), l=np.array([0, 0, 1, 1]))
    (tmp_path / "text.npy").write_text("1, 2, 3")
    result = dml("eval", *arguments, code=2)
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""


def test_embed_writes_embeddings_labels_and_codes(dml, folder, tmp_path):
    printed = dml(
        "embed", folder.path, "--out", tmp_path / "e.npy", "--labels", tmp_path / "l.npy"
    ).stdout
    assert printed == f"{tmp_path / 'e.npy'}: {len(np.load(folder.labels()))} images\n"
    assert np.array_equal(np.load(tmp_path / "e.npy"), np.load(folder.embeddings()))
    assert np.array_equal(np.load(tmp_path / "l.npy"), np.load(folder.labels()))
    dml("embed", folder.path, "--codes", "--out", tmp_path / "c.npy")
    assert np.array_equal(
        np.load(tmp_path / "c.npy"), np.packbits(np.load(tmp_path / "e.npy") > 0, axis=1)
    )
    dml("embed", folder.path, "--split", "train", "--out", tmp_path / "t.npy")
    assert np.load(tmp_path / "t.npy").shape == (48, 8)


def test_embed_overwrites_nothing_and_reports_a_missing_gallery(dml, folder, tmp_path):
    (tmp_path / "e.npy").write_text("mine")
    assert "exists already" in dml("embed", folder.path, "--out", tmp_path / "e.npy", code=2).stderr
    assert (tmp_path / "e.npy").read_text() == "mine"
    result = dml("embed", folder.path, "--split", "gallery", "--out", tmp_path / "g.npy", code=2)
    assert "doesn't define a gallery" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "glyphs-tiny", "--set", "training.workers={}", "--out", "new"],
        ["train", "glyphs-tiny", "--nproc", "{}", "--out", "new"],
        ["reproduce", "--jobs", "{}", "--out", "new"],
        ["reproduce", "--seeds", "{}", "--out", "new"],
        ["tune", "glyphs-tiny", "--trials", "1", "--folds", "{}", "--out", "new"],
        ["embed", "run", "images", "--workers", "{}", "--out", "new"],
    ],
    ids=lambda arguments: " ".join(arguments[:5]),
)
def test_too_many_processes_are_refused_before_a_folder_is_made(
    dml, tmp_path, monkeypatch, arguments
):
    monkeypatch.chdir(tmp_path)
    result = dml(*(part.format(10**13) for part in arguments), code=2)
    assert str(10**13) in result.stderr
    assert "1000" in result.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["train", "demo"])
def test_an_error_names_the_options_of_its_command_that_fix_it(dml, folder, command):
    recipe = [folder.recipe] if command == "train" else []
    result = dml(command, *recipe, "--out", folder.path, code=2)
    assert result.stderr == (
        f"error: the run folder {folder.path} exists already; nothing was touched. "
        f"Resume that run, or choose another folder (dml {command} --resume, --out)\n"
    )


def test_plugins_lists_components_by_provider_those_of_a_kind_and_failures(dml, registry):
    lines = dml("plugins").stdout.splitlines()
    assert "tiny 1.0  (TinyPlugin)" in lines
    assert "  losses      tiny  a softmax" in lines
    first, *components = dml("plugins", "losses").stdout.splitlines()
    assert first == "tiny 1.0  (TinyPlugin)"
    assert "  losses      tiny  a softmax" in components
    assert {line.split()[0] for line in components} == {"losses"}
    point = EntryPoint(name="broken", value="no_such_module", group="dml")
    registry.plugins.failures.extend(Plugins([point]).failures)
    assert "No module named 'no_such_module'" in dml("plugins").stdout


def test_a_demo_without_the_extras_names_what_to_install_and_writes_nothing(registry, out):
    with pytest.raises(
        DmlError, match=r"unknown loss 'norm-softmax'[\s\S]*pip install 'dml-train\[all\]'"
    ):
        run_demo(out, registry=registry)
    assert not out.exists()


def test_plugins_describes_the_options_of_a_component(dml, registry):
    def make(scale: float, kind: Literal["a", "b"] = "b", seed: int = 0, **more: object):
        return None

    class Provider:
        @hookimpl
        def dml_losses(self):
            yield Component("described", make, "a loss", source="Me 2026, Eq. 1")

    registry.plugins.register(Provider(), distribution="mine", version="2")
    assert dml("plugins", "described").stdout.splitlines() == [
        "loss described: a loss",
        "  of mine 2 (Provider)",
        "  source: Me 2026, Eq. 1",
        "  scale  float              required",
        "  kind   Literal['a', 'b']  default: 'b'",
        "  seed   int                given by the run",
        "  and any other key",
    ]
    assert "did you mean 'described'?" in dml("plugins", "describd", code=2).stderr


def test_a_plugin_adds_a_command_and_may_not_replace_one(dml, registry):
    class Friendly:
        @hookimpl
        def dml_commands(self):
            return [click.Command("hello", callback=lambda: click.echo("hello"))]

    class Hostile:
        @hookimpl
        def dml_commands(self):
            return [click.Command("train", callback=lambda: None)]

    registry.plugins.register(Friendly(), distribution="friendly", version="1")
    assert dml("hello").stdout == "hello\n"
    assert "hello" in dml("--help").stdout
    registry.plugins.register(Hostile(), distribution="hostile", version="2")
    assert (
        "hostile 2 adds a command 'train', which dml already defines"
        in dml("--help", code=2).stderr
    )


@pytest.mark.parametrize(
    ("error", "code", "output"),
    [
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C\n"),
        (
            PermissionError(13, "Permission denied", "theirs"),
            2,
            "error: can't use theirs: Permission denied\n",
        ),
        (
            RunInterrupted(signal.SIGTERM, 3, Path("runs/a")),
            143,
            "stopped by SIGTERM after step 3; a checkpoint is saved: resume the run in runs/a (dml "
            "train --resume)\n",
        ),
    ],
)
def test_signals_and_missing_permissions_print_no_traceback(dml, registry, error, code, output):
    def end():
        raise error

    class Ending:
        @hookimpl
        def dml_commands(self):
            return [click.Command("end", callback=end)]

    registry.plugins.register(Ending(), distribution="ending")
    assert dml("end", code=code).stderr == output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "Missing argument 'RECIPE'. A TOML file, or a name that 'dml recipes' lists"),
        (["train", "demo"], "Missing option '--out'. The run's folder; must be new, or --check"),
        (["report"], "Missing argument 'RUN...'. The folder that 'dml train' wrote"),
        (["search", "run"], "Missing argument 'QUERY...'. An image file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_missing_argument_is_described(dml, arguments, message):
    assert message in dml(*arguments, code=2).stderr


@pytest.mark.parametrize("group", [[], ["data"]], ids=["dml", "data"])
def test_no_line_of_the_help_is_cut(dml, group):
    listed = dml(*group, "--help").stdout.partition("Commands:")[2]
    assert "..." not in listed
    assert len(listed.splitlines()) > 2

"""Resuming: a stopped run should end with equal bits; a different recipe must not be used unless
forced.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal

import pytest
import torch
from train_support.photo_world import photo_document, write_photos
from train_support.run_traces import check_same_bits, lines, same, stopped

import dml_losses.plugin
from dml_core import DmlError, hookimpl
from dml_train.processes.stopping import RunInterrupted
from dml_train.recipe.checking import parse
from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint
from dml_train.training import run as training

TWO_LEVELS = {
    "name": "small-conv",
    "widths": [8, 16],
    "norm": "group",
    "levels": ["block1", "block2"],
}


def remember(parameter, **loss):
    """Return tables with a loss around an inner loss, and a schedule for a parameter of the inner
    loss.
    """
    schedule = {f"loss.loss.{parameter}": {"kind": "linear", "start": 0.05, "end": 0.2}}
    training = {"ema_decay": 0.9, "micro_batch": 3, "gradient_clip": 1.0}
    return {
        "training": training,
        "schedule": schedule,
        "loss": {**loss, "loss": {"name": loss["loss"]}},
    }


# Losses with a memory of past batches, or of sampled classes.
MEMORIES = [
    remember(
        "temperature", name="memvir", num_steps=3, margin=1, warmup_steps=2, loss="norm-softmax"
    ),
    remember("scale", name="cross-batch-memory", capacity=24, loss="instance-cross-entropy"),
    remember("margin", name="broad-face", capacity=24, warmup_steps=2, loss="arc-face"),
    remember("temperature", name="sampled-classes", class_fraction=0.5, loss="norm-softmax"),
]


@pytest.mark.parametrize(
    ("optimizer", "more"),
    [
        ({"name": "adamw"}, {"training": {"ema_decay": 0.9, "views": 2}}),
        (
            {"name": "sgd"},
            {
                "evaluation": {"every": 1, "unit": "step"},
                "validation": {"class_fraction": 0.3, "metric": "recall@1", "patience": 11},
            },
        ),
        (
            {"name": "sgd"},
            {"training": {"precision": "float16"}},
        ),  # first, the scaler halves the scale
        ({"name": "adamw"}, {"loss": {"name": "tiny-sparse"}}),  # 2 optimizers
        ({"name": "adamw"}, {"backbone": TWO_LEVELS}),
        (
            {"name": "adamw"},
            {"initialisation": {"class_weights": "class-means", "adapt_batch_norm": 1.0}},
        ),
        (
            {"name": "sgd", "momentum": 0.9},
            {
                "loss": {"name": "tiny-sparse"},
                "training": {"gradient_clip": 1.0, "precision": "float16"},
            },
        ),
        *(({"name": "adamw"}, tables) for tables in MEMORIES),
    ],
)
def test_a_stopped_run_resumes_to_the_same_bits(run, registry, tmp_path, optimizer, more):
    schedule = {"optimizer.lr": {"kind": "cosine", "end": 0.0}, "model.backbone_trains": {
        "kind": "step", "values": [0, 1], "milestones": [3]}}  # fmt: skip
    tables = {"optimizer": optimizer, "schedule": schedule, **more}
    registry.plugins.register(dml_losses.plugin, distribution="dml-losses")
    whole = run(where=tmp_path / "whole", **tables)
    with stopped(registry, 7):
        run(where=tmp_path / "cut", **tables)
    cut = run(where=tmp_path / "cut", resume=True, **tables)

    one, other = check_same_bits(whole, cut), checkpoint.newest_intact(cut.checkpoints)
    assert one.step == 12
    for name in (checkpoint.WEIGHTS, checkpoint.STATE, checkpoint.MANIFEST):
        assert (one.path / name).read_bytes() == (other.path / name).read_bytes()


class SignalAt:
    """Observer that sends SIGTERM twice to this process when a step is evaluated or saved."""

    def __init__(self, moment, step):
        self.moment, self.step = moment, step

    def send_at(self, moment, step):
        if (moment, step) == (self.moment, self.step):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)

    @hookimpl
    def dml_evaluation_end(self, step):
        self.send_at("evaluation", step)

    @hookimpl
    def dml_checkpoint_saved(self, step):
        self.send_at("save", step)


@pytest.mark.parametrize(
    ("moment", "step", "stops"), [("evaluation", 6, 7), ("save", 8, 9), ("save", 12, 12)]
)
def test_a_signal_during_evaluation_or_saving_stops_the_run_soon(
    run, registry, tmp_path, moment, step, stops
):
    tables = {"evaluation": {"every": 6, "unit": "step"}}
    whole = run(where=tmp_path / "whole", **tables)
    observer = SignalAt(moment, step)
    registry.plugins.register(observer, distribution="signals")
    with pytest.raises(
        RunInterrupted, match=f"stopped by SIGTERM after step {stops}; a checkpoint is saved"
    ):
        run(where=tmp_path / "cut", **tables)
    registry.plugins.manager.unregister(observer)
    assert checkpoint.newest_intact(tmp_path / "cut" / "checkpoints").step == stops
    cut = run(where=tmp_path / "cut", resume=True, **tables)
    check_same_bits(whole, cut)


@pytest.mark.parametrize("resume", [False, True])
def test_remains_of_a_run_killed_at_its_start_are_ignored(run, out, resume):
    out.mkdir()
    (out / ".recipe.toml.partial").write_text("[trai")
    assert run(resume=resume, training={"steps": 1}).evaluation.exists()


def test_a_folder_of_a_run_without_a_step_is_used_again(run, out, tiny_document):
    """Here, loading the first batch fails. With a user's file in the folder, a new run must raise
    an error.
    """
    with pytest.raises(DmlError, match="broken image"):
        run(dataset={"name": "tiny", "broken": 40})
    assert (out / "recipe.toml").is_file()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(DmlError, match="exists already"):
        run()
    (out / "notes.txt").unlink()
    assert run().evaluation.is_file()
    with pytest.raises(DmlError, match="exists already"):
        run()


def test_a_folder_that_cannot_be_locked_is_reported(run, out, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.ENOSYS, "Function not implemented")  # as on some clusters' file systems

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(DmlError, match=r"can't lock .*: Function not implemented"):
        run()


def test_a_folder_on_nfs_is_locked_by_a_file_beside_it(out, monkeypatch):
    flock = fcntl.flock

    def lock_what_is_open_for_writing(descriptor, operation):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_what_is_open_for_writing)
    out.mkdir()
    with RunFolder(out).lock(), pytest.raises(DmlError, match="another process is training in"):
        RunFolder(out).lock().__enter__()
    with RunFolder(out).lock():
        assert not list(out.iterdir())


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_another_process_makes_meanwhile_is_not_touched(
    run, out, tmp_path, monkeypatch, resume
):
    """Two processes find no folder and start the run; the other process makes the folder first."""

    def train_meanwhile(experiment):
        monkeypatch.undo()
        run(training={"steps": 4})
        made.update(contents(out))

    made = {}
    monkeypatch.setattr(training, "rehearse", train_meanwhile)
    with pytest.raises(DmlError, match="exists already; nothing was touched"):
        run(resume=resume)
    assert len(made) > 5
    assert contents(out) == made


def test_resuming_a_complete_run_changes_nothing_and_a_second_run_is_refused_before_it_loads_data(
    run, out, monkeypatch
):
    run()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    run(resume=True)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    monkeypatch.setattr(training, "build", lambda *arguments: pytest.fail("data is loaded"))
    with RunFolder(out).lock():
        for resume in (False, True):
            with pytest.raises(DmlError, match="another process is training in"):
                run(resume=resume)


@pytest.mark.parametrize("name", ["mine.txt", "recipe.toml"])  # a recipe without a run is a user's
def test_an_existing_folder_is_refused_unchanged(run, out, name):
    out.mkdir()
    (out / name).write_text("# mine")
    with pytest.raises(DmlError, match="exists already; nothing was touched"):
        run()
    assert contents(out) == {out / name: b"# mine"}


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("before", "changes", "differs"),
    [
        ({}, {"embedding": {"dim": 4}}, "embedding.dim: 8 there, 4 here"),
        ({}, {"dataset": {"num_classes": 7}}, "dataset.num_classes: 6 there, 7 here"),
        ({}, {"optimizer": {"name": "sgd"}}, "optimizer.name: 'adamw' there, 'sgd' here"),
        (
            {"optimizer": {"name": "sgd"}},
            {"optimizer": {"name": "adamw"}},
            "'sgd' there, 'adamw' here",
        ),
    ],
)
def test_a_forced_recipe_that_does_not_fit_changes_nothing(run, out, before, changes, differs):
    run(**before)
    (out / "evaluation.json").unlink()
    files = contents(out)
    message = rf"(?s)the checkpoint in .* doesn't fit the recipe, which differs:.*{differs}"
    with pytest.raises(DmlError, match=message):
        run(resume=True, force=True, **{**before, **changes})
    assert contents(out) == files
    assert run(resume=True, **before).evaluation.exists()


def test_a_finished_run_resumes_with_another_recipe_by_force(run, out):
    run()
    with pytest.raises(DmlError, match=r"training\.steps: 12 there, 16 here"):
        run(resume=True, training={"steps": 16})
    folder = run(resume=True, force=True, training={"steps": 16})
    assert json.loads(folder.evaluation.read_text())["step"] == 16
    assert [line["step"] for line in lines(folder) if "loss" in line] == [*range(1, 17)]
    assert "steps = 16" in folder.recipe.read_text()


def test_a_forced_option_of_the_optimizer_is_used(run, out):
    run(optimizer={"name": "sgd", "momentum": 0.9})
    folder = run(
        resume=True, force=True, optimizer={"name": "sgd", "momentum": 0.5}, training={"steps": 16}
    )
    groups = checkpoint.newest_intact(folder.checkpoints).state()["optimizer"]["param_groups"]
    assert {group["momentum"] for group in groups} == {0.5}


def newest(folder):
    found = checkpoint.newest_intact(folder.checkpoints)
    return found.weights(), found.state()


def test_averaging_starts_or_stops_by_force_and_does_not_change_the_training(run, tmp_path):
    longer = {"steps": 16, "ema_decay": 0.9}
    every = {"checkpoints": {"every": 1, "keep": 4}}
    plain = newest(run(where=tmp_path / "plain", training={"steps": 16}))[0]

    run(where=tmp_path / "started")
    started = run(where=tmp_path / "started", resume=True, force=True, training=longer, **every)
    weights, state = newest(started)
    assert same(state["model"], plain)
    assert state["averaged"] == 4
    trained = [
        c.state()["model"]["head.linear.weight"] for c in checkpoint.intact(started.checkpoints)
    ][::-1]
    expected = trained[0]
    for then in trained[1:]:
        expected = 0.9 * expected + 0.1 * then
    # The two computations round in a different order.
    torch.testing.assert_close(weights["head.linear.weight"], expected, rtol=1e-6, atol=1e-7)

    run(where=tmp_path / "stopped", training={"ema_decay": 0.9})
    stopped = run(where=tmp_path / "stopped", resume=True, force=True, training={"steps": 16})
    assert same(newest(stopped)[0], plain)


def test_loss_scaling_starts_or_stops_by_force(run, out):
    for steps, precision, scales in (
        (12, "float32", False),
        (16, "float16", True),
        (20, "float32", False),
    ):
        folder = run(resume=True, force=True, training={"steps": steps, "precision": precision})
        assert bool(newest(folder)[1]["scaler"]) == scales
    assert [line["step"] for line in lines(folder) if "loss" in line] == [*range(1, 21)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_ended_by_unreadable_images_resumes_to_the_same_bits(
    tmp_path, registry, quiet, workers
):
    """Images are damaged after all images were checked; the error names the image and the
    checkpoint.
    """
    photos = write_photos(tmp_path / "photos")
    contents = {file: file.read_bytes() for file in photos.rglob("*.png")}

    class CutAll:
        @hookimpl
        def dml_step_end(self, step):
            if step == 3:
                for file in contents:
                    file.write_bytes(contents[file][:60])

    def train(out, resume=False):
        document = photo_document(photos) | {
            "training": {"steps": 12, "device": "cpu", "workers": workers},
            "checkpoints": {"every": 2, "unit": "step"},
            "logging": {"every": 1, "loggers": [{"name": "jsonl"}]},
        }
        recipe = parse(document, registry)
        return training.train(
            recipe, tmp_path / out, resume=resume, registry=registry, console=quiet
        )

    whole = train("whole")
    plugin = CutAll()
    registry.plugins.register(plugin, distribution="cut")
    expected = (
        r"can't read the image .*\.png: .*\nThe run ended after step \d+; the checkpoint of step "
        r"\d+ "
    )
    with pytest.raises(DmlError, match=expected) as ended:
        train("cut")
    assert ended.value.arguments == ("resume",)
    registry.plugins.manager.unregister(plugin)
    with pytest.raises(DmlError, match="can't read the image"):
        train("cut", resume=True)
    for file, content in contents.items():
        file.write_bytes(content)
    cut = train("cut", resume=True)
    for path in (cut.metrics, cut.embeddings(), cut.evaluation, cut.data):
        assert path.read_bytes() == (whole.path / path.name).read_bytes()

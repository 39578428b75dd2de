"""A run from the recipe to the folder."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from train_support.run_traces import lines, losses
from train_support.tiny_world import TinyLoss, provide

from dml_core import DmlError, hookimpl
from dml_train.ranks.ranks import SINGLE_PROCESS
from dml_train.recipe.checking import parse
from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint
from dml_train.training.build import build, build_model
from dml_train.training.divergence import find_nonfinite, untrained_names
from dml_train.training.replica import Replica


def test_a_run_writes_its_folder(run):
    folder = run()
    assert [line["step"] for line in lines(folder)] == [*range(1, 13), 12]
    assert json.loads(folder.evaluation.read_text())["recall@1"] > 0.5
    embeddings, labels = np.load(folder.embeddings()), np.load(folder.labels())
    assert embeddings.shape == (48, 8)
    assert embeddings.dtype == np.float32
    assert labels.shape == (48,)
    assert [c.step for c in checkpoint.intact(folder.checkpoints)] == [12, 8]


def test_a_run_says_what_trains_and_what_is_measured(run, quiet):
    run(training={"steps": 2}, validation={"class_fraction": 0.34, "metric": "recall@1"},
        evaluation={"every": 1, "unit": "step"})  # fmt: skip
    said = " ".join(quiet.file.getvalue().split())
    assert said.startswith("loading the data set 'tiny' tiny (")
    assert "trains with tiny on" in said
    assert (
        ": 2 steps on cpu; 2 classes are held out for validation; then 48 images of 6 other classes"
        in said
    )


def test_the_loss_falls(run):
    logged = losses(run(training={"steps": 60}))
    assert np.mean(logged[-10:]) < np.mean(logged[:10]) - 0.3


def test_metrics_have_scheduled_values_and_no_times(run):
    folder = run(
        schedule={
            "optimizer.lr": {"kind": "cosine", "end": 0.0},
            "optimizer.lr_multipliers.head": {"kind": "linear", "end": 1.0},
            "loss.scale": {"kind": "linear", "start": 1, "end": 9},
        },
        optimizer={"lr_multipliers": {"head": 4.0}},
        training={"gradient_clip": 1.0},
    )
    first, *_, last = lines(folder)[:-1]
    assert set(first) == {
        "step", "loss", "gradient_norm", "optimizer.lr", "optimizer.lr_multipliers.head",
        "loss.scale"
    }  # fmt: skip
    assert (first["optimizer.lr"], first["loss.scale"]) == (0.01, 1.0)
    assert (
        first["optimizer.lr_multipliers.head"] == 4.0
    )  # a linear schedule starts at the recipe's value
    assert last["optimizer.lr"] < 1e-3
    assert last["loss.scale"] == pytest.approx(1 + 8 * 11 / 12)


def test_the_number_of_workers_changes_nothing(run, tmp_path):
    alone = run(where=tmp_path / "alone", training={"steps": 4})
    helped = run(where=tmp_path / "helped", training={"steps": 4, "workers": 2})
    assert alone.metrics.read_bytes() == helped.metrics.read_bytes()
    assert np.array_equal(np.load(alone.embeddings()), np.load(helped.embeddings()))


def test_the_seed_changes_the_run(run, tmp_path):
    first, other = (run(where=tmp_path / str(s), training={"seed": s, "steps": 2}) for s in (1, 2))
    assert lines(first)[0]["loss"] != lines(other)[0]["loss"]


def test_a_mistake_found_while_building_leaves_no_folder(run, out):
    with pytest.raises(DmlError, match="classes_per_batch is 40; expected at most 6"):
        run(sampler={"classes_per_batch": 40})
    with pytest.raises(DmlError, match=r"schedule 'loss.sclae'.*did you mean 'scale'"):
        run(schedule={"loss.sclae": {"kind": "constant", "value": 1}})
    with pytest.raises(
        DmlError, match=r"\[schedule.'optimizer.lr'\]: end is -1; expected .* at least 0"
    ):
        run(schedule={"optimizer.lr": {"kind": "cosine", "end": -1}})
    with pytest.raises(DmlError, match="this machine has"):
        run(training={"device": "cuda:99"})
    assert not out.exists()


def test_a_non_finite_loss_stops_the_run_and_names_the_batch(run, out):
    message = r"the loss of step 6 is nan.*checkpoint of step 4 .* is intact.*items \["
    with pytest.raises(DmlError, match=message):
        run(schedule={"loss.scale": {"kind": "step", "values": [1, float("nan")],
            "milestones": [5]}},
            logging={"every": 6})  # fmt: skip


@pytest.mark.parametrize(
    "refusal", [ZeroDivisionError("division by zero"), ValueError("scale is 0")]
)
def test_a_scheduled_value_that_the_loss_refuses_is_named(run, monkeypatch, refusal):
    forward = TinyLoss.forward

    def forward_above_0(
        self: TinyLoss, embeddings: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        if self.scale == 0:
            raise refusal
        return forward(self, embeddings, labels)

    monkeypatch.setattr(TinyLoss, "forward", forward_above_0)
    expected = (
        rf"^step 6 failed: .*{refusal}\. .* loss.scale = 0; the checkpoint of step 4 .* is "
        r"intact.* by force"
    )
    with pytest.raises(DmlError, match=expected):
        run(schedule={"loss.scale": {"kind": "step", "values": [1, 0], "milestones": [5]}})


SGD = {"name": "sgd", "momentum": 0.0}


@pytest.mark.parametrize(
    ("scale", "changes", "spoilt"),
    [
        (1e4, {"optimizer": SGD}, "the network's backbone"),
        (
            1e4,
            {"optimizer": SGD | {"lr_multipliers": {"backbone": 0.0, "head": 0.0}}},
            "the loss's class_weights",
        ),
        (1e4, {"optimizer": SGD, "training": {"ema_decay": 0.9}}, "the network's backbone"),
        (1e30, {}, ""),  # AdamW's state becomes infinite
    ],
)
def test_weights_or_a_state_that_became_infinite_in_one_step_are_not_saved(
    run, out, scale, changes, spoilt
):
    # The loss is finite and, if momentum is not used, the optimizer's state is, too.
    leap = {"loss.scale": {"kind": "step", "values": [4.0, scale, 4.0], "milestones": [7, 8]}}
    if changes:
        leap["optimizer.lr"] = {"kind": "step", "values": [0.01, 1e38, 0.01], "milestones": [7, 8]}
    message = rf"after step 8 {spoilt}.* isn't finite.*of step 4 .* is intact.*lower"
    with pytest.raises(DmlError, match=message):
        run(schedule=leap, **changes)
    assert [np.isfinite(loss) for loss in losses(RunFolder(out))] == [True] * 8
    assert [c.step for c in checkpoint.intact(out / "checkpoints")] == [4]
    assert run(resume=True, force=True, **changes).evaluation.exists()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_cannot_be_loaded_is_named(run, workers):
    message = r"^item 17 \(class 'class 2'\) can't be loaded: OSError: broken image\n"
    with pytest.raises(DmlError, match=message):
        run(dataset={"broken": 17}, training={"workers": workers})


class Failing:
    """An observer that fails in the first step."""

    def __init__(self, error):
        self.error, self.calls = error, 0

    @hookimpl
    def dml_step_end(self, step):
        self.calls += 1
        raise self.error


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(3)], ids=str)
def test_an_observer_that_fails_is_named_and_set_aside(run, registry, quiet, error):
    observer = Failing(error)
    registry.plugins.register(observer, distribution="failing", version="2.0")
    assert run().evaluation.is_file()
    assert observer.calls == 1
    told = quiet.file.getvalue()
    assert (
        f"the plugin failing 2.0 in dml_step_end failed: {type(error).__name__}: {error}"
        in " ".join(told.split())
    )


def test_an_observers_message_to_the_user_ends_the_run_and_strict_plugins_make_other_errors_fatal(
    run, registry, monkeypatch, tmp_path
):
    failing = Failing(DmlError("enough"))
    registry.plugins.register(failing, distribution="failing")
    with pytest.raises(DmlError, match="enough"):
        run(tmp_path / "message")
    monkeypatch.setenv("DML_STRICT_PLUGINS", "1")
    failing.error = ValueError("odd")
    with pytest.raises(
        DmlError, match=r"dml_step_end failed: ValueError: odd \(DML_STRICT_PLUGINS is set\)"
    ):
        run(tmp_path / "strict")


def test_a_logger_that_fails_is_named_and_set_aside(run, registry, quiet):
    class Broken:
        def __init__(self, directory, start_step=0):
            pass

        def log(self, step, values):
            raise RuntimeError("no connection")

        def close(self):
            raise AssertionError("closed a logger that was set aside")

    provide(registry, "loggers", "broken", Broken)
    folder = run(logging={"loggers": [{"name": "broken"}, {"name": "jsonl"}]})
    assert len(lines(folder)) == 13
    assert quiet.file.getvalue().count("the logger Broken failed: RuntimeError: no connection") == 1


def test_observers_see_every_step_and_every_checkpoint_in_order(run, registry):
    seen = []

    class Observer:
        @hookimpl
        def dml_run_start(self, run):
            seen.append(("start", run.num_steps))

        @hookimpl
        def dml_step_end(self, step, values):
            seen.append(("step", step, sorted(values)))

        @hookimpl
        def dml_evaluation_end(self, step, result):
            seen.append(("evaluation", step, result["recall@1"] > 0))

        @hookimpl
        def dml_checkpoint_saved(self, step, path):
            seen.append(("checkpoint", step, path.name))

        @hookimpl
        def dml_run_end(self, step, error):
            seen.append(("end", step, error))

    registry.plugins.register(Observer(), distribution="observer")
    run(training={"steps": 4}, checkpoints={"every": 2}, evaluation={"every": 2, "unit": "step"})
    values = ["loss", "optimizer.lr"]
    assert seen == [
        ("start", 4),
        *[("step", step, values) for step in (1, 2)],
        ("evaluation", 2, True),
        ("checkpoint", 2, "step-00000002"),
        *[("step", step, values) for step in (3, 4)],
        ("checkpoint", 4, "step-00000004"),
        ("evaluation", 4, True),
        ("end", 4, None),
    ]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_trains_to_float32_embeddings(run, device, precision):
    folder = run(training={"device": device, "precision": precision, "channels_last": True,
        "gradient_clip": 1.0,
                           "steps": 60})  # fmt: skip
    assert np.load(folder.embeddings()).dtype == np.float32
    logged = losses(folder)
    assert np.mean(logged[-10:]) < np.mean(logged[:10]) - 0.3


def test_a_compiled_network_matches_the_plain_one_and_saves_the_same_names(
    run, tmp_path, monkeypatch
):
    # This tests the tracing; test_compiled_network tests the code of the default backend.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager", fullgraph=True))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    plain = run(where=tmp_path / "plain")
    compiled = run(where=tmp_path / "compiled", training={"compile": True})
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-5)
    one, other = (
        checkpoint.newest_intact(folder.checkpoints).weights() for folder in (plain, compiled)
    )
    assert one.keys() == other.keys()


def test_channels_last_changes_the_layout_and_not_the_run(run, tmp_path, registry, tiny_document):
    still = {"dropout": 0.0}  # since dropout masks depend on the memory layout
    plain = run(where=tmp_path / "plain", backbone=still)
    laid_out = run(where=tmp_path / "last", backbone=still, training={"channels_last": True})
    # Convolutions sum in a different order, and errors grow over twelve steps.
    assert losses(laid_out) == pytest.approx(losses(plain), rel=1e-4)
    document = tiny_document(training={"channels_last": True})
    model = build_model(parse(document, registry), 3, registry, torch.device("cpu"))
    convolution = model.backbone.layers[0]
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
    assert not convolution.weight.is_contiguous()


def test_micro_batches_give_the_gradient_of_the_batch(run, tmp_path, device):
    plain = {"backbone": {"norm": False, "dropout": 0.0}}
    whole = run(where=tmp_path / "whole", **plain, training={"device": device})
    parts = run(where=tmp_path / "parts", **plain, training={"device": device, "micro_batch": 3})
    # Micro-batches sum in a different order, and errors grow over twelve steps.
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-5)


def test_a_micro_batch_updates_batch_norms_once_and_draws_one_dropout_in_both_passes(
    registry, tiny_document
):
    document = tiny_document(training={"micro_batch": 4}, backbone={"dropout": 0.5})
    experiment = build(parse(document, registry), registry)
    network = Replica(experiment, SINGLE_PROCESS)
    experiment.model.train()
    images = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    norm = experiment.model.backbone.layers[1]
    embeddings = network.embed(images, step=0)
    assert norm.num_batches_tracked == 0
    again = []
    experiment.model.register_forward_hook(
        lambda module, inputs, output: again.append(output.detach())
    )
    embeddings.square().sum().backward()
    network.finish_backward()
    assert norm.num_batches_tracked == 2
    assert torch.equal(torch.cat(again), embeddings.detach())


class Pairs(torch.nn.Module):
    """A loss that is zero if no two items of a batch have the same class."""

    def forward(self, embeddings, labels):
        same = (labels[:, None] == labels).float().fill_diagonal_(0)
        return ((embeddings @ embeddings.T) * same).sum()


class Nothing(torch.nn.Module):
    def forward(self, embeddings, labels):
        return 0 * embeddings.sum()


@pytest.mark.parametrize(("loss", "images_per_class", "warnings"), [(Pairs, 1, 1), (Nothing, 2, 0)])
def test_a_loss_without_any_pair_is_warned_of_once(
    run, registry, quiet, loss, images_per_class, warnings
):
    provide(registry, "losses", "zero", loss)
    run(
        loss={"name": "zero"}, training={"steps": 9}, sampler={"images_per_class": images_per_class}
    )
    said = " ".join(quiet.file.getvalue().split())
    expected = (
        "is exactly 0: no two of the batch's 4 items have the same class, and the loss 'zero'"
    )
    assert said.count(expected) == said.count("is exactly 0") == warnings


def test_infinities_are_allowed_in_untrained_tensors_and_nan_is_not():
    weights = {"mask": torch.tensor([0.0, -torch.inf])}
    assert find_nonfinite(weights, {}, {}, {"mask"}) is None
    assert find_nonfinite(weights, {}, {}, ()) == "the network's mask"
    assert find_nonfinite({}, {"loss": weights}, {}, ()) == "the loss's mask"
    weights["mask"][0] = torch.nan
    assert find_nonfinite({}, {"model": weights}, {}, {"mask"}) == "the trained mask"


def test_buffers_and_frozen_parameters_are_untrained():
    module = torch.nn.BatchNorm1d(2)
    module.bias.requires_grad_(False)
    names = untrained_names(module)
    assert names == {"bias", "running_mean", "running_var", "num_batches_tracked"}

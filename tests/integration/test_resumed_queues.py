"""Losses with a memory of past batches, and of sampled classes, resume to the same bits."""

from __future__ import annotations

import pytest
from rich.console import Console
from train_support.run_traces import check_same_bits, stopped
from train_support.tiny_world import make_document, make_registry

import dml_losses.plugin
from dml_train.recipe.checking import parse
from dml_train.training.run import train


@pytest.mark.parametrize(
    ("loss", "path"),
    [
        (
            {
                "name": "memvir",
                "num_steps": 3,
                "margin": 1,
                "warmup_steps": 2,
                "loss": {"name": "norm-softmax"},
            },
            "loss.loss.temperature",
        ),
        (
            {"name": "cross-batch-memory", "capacity": 24, "loss": {"name": "instance-cross-entropy"}},
            "loss.loss.scale",
        ),
        (
            {"name": "broad-face", "capacity": 24, "warmup_steps": 2, "loss": {"name": "arc-face"}},
            "loss.loss.margin",
        ),
        (
            {"name": "sampled-classes", "class_fraction": 0.5, "loss": {"name": "norm-softmax"}},
            "loss.loss.temperature",
        ),
    ],
)
def test_a_loss_with_a_memory_resumes_to_the_same_bits(tmp_path, loss, path):
    registry = make_registry()
    registry.plugins.register(dml_losses.plugin, distribution="dml-losses")
    document = make_document(
        training={"ema_decay": 0.9, "micro_batch": 3, "gradient_clip": 1.0},
        schedule={path: {"kind": "linear", "start": 0.05, "end": 0.2}},
    )
    recipe = parse({**document, "loss": loss}, registry)

    def run(name, resume=False):
        return train(recipe, tmp_path / name, resume=resume, registry=registry, console=Console(quiet=True))

    uninterrupted = run("uninterrupted")
    with stopped(registry, 9):
        run("stopped")
    resumed = run("stopped", resume=True)

    check_same_bits(uninterrupted, resumed)

"""Class weights sharded over ranks, in a run: trained, clipped, saved unsharded, and resumed by other ranks."""

from __future__ import annotations

import pytest
import torch
from run_traces import losses
from sharded_ranks import in_ranks, step_as_one, train_until

from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint

PLAIN = {
    "training": {
        "steps": 16,
        "gradient_clip": 0.5,
        "ema_decay": 0.9,
        "micro_batch": 3,
    },  # of 8, 4 or 2 rows a rank
    "backbone": {"dropout": 0.0, "norm": False},
    "dataset": {"num_classes": 7},
    "sampler": {"classes_per_batch": 4, "images_per_class": 2},
    "logging": {"every": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "optimizer"),
    [
        ({"name": "curricular-face", "scale": 8.0}, {"name": "sgd", "momentum": 0.9}),
        ({"name": "norm-softmax", "class_fraction": 0.7}, {"name": "adamw"}),
    ],
)
def test_one_then_two_then_four_ranks_then_one_train_as_one_does_without_sharding(
    tiny_document, tmp_path, loss, optimizer
):
    whole = tiny_document(**PLAIN, loss=loss, optimizer=optimizer)
    train_until(whole, tmp_path / "whole", 99)
    sharded = {**whole, "loss": {"name": "sharded-classes", "loss": loss}}
    train_until(sharded, tmp_path / "sharded", 5)
    in_ranks(2, train_until, sharded, tmp_path / "sharded", 9)
    in_ranks(4, train_until, sharded, tmp_path / "sharded", 13)
    train_until(sharded, tmp_path / "sharded", 99)

    expected = losses(RunFolder(tmp_path / "whole"))
    assert len(expected) == 16
    # float32: sums in another order, sixteen steps long
    assert losses(RunFolder(tmp_path / "sharded")) == pytest.approx(expected, rel=1e-4)
    one, other = (checkpoint.newest_intact(tmp_path / run / "checkpoints") for run in ("whole", "sharded"))
    assert other.state()["loss"]["loss.class_weights"].shape == (7, 8)
    averages = (last.weights()["head.linear.weight"] for last in (one, other))
    torch.testing.assert_close(*averages, rtol=1e-3, atol=1e-4)  # as above, and weights near 0 are among them


def test_ranks_clip_by_one_norm_and_skip_a_step_together():
    in_ranks(2, step_as_one)

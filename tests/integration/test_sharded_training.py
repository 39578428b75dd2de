"""Class weights sharded over ranks, in a run: trained, clipped, saved unsharded, and resumed by
other ranks.
"""

from __future__ import annotations

import pytest
import torch
from train_support.run_traces import losses
from train_support.sharded_ranks import in_ranks, train_until
from train_support.tiny_world import make_document

from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint

LOSSES = ["dml_losses.plugin"]
PLAIN = {
    "training": {
        "steps": 16,
        "gradient_clip": 0.5,
        "ema_decay": 0.9,
        "micro_batch": 3,  # a rank has 8, 4 or 2 rows
    },
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
        (
            {"name": "sampled-classes", "class_fraction": 0.7, "loss": {"name": "norm-softmax"}},
            {"name": "adamw"},
        ),
        ({"name": "sub-center-arc-face", "centers_per_class": 2, "scale": 8.0}, {"name": "sgd"}),
    ],
)
def test_a_sharded_run_on_one_two_four_and_one_ranks_matches_an_unsharded_run(
    tmp_path, loss, optimizer
):
    unsharded = make_document(**PLAIN, loss=loss, optimizer=optimizer)
    train_until(unsharded, tmp_path / "unsharded", 99, LOSSES)
    sharded = {**unsharded, "loss": {"name": "sharded-classes", "loss": loss}}
    train_until(sharded, tmp_path / "sharded", 5, LOSSES)
    in_ranks(2, train_until, sharded, tmp_path / "sharded", 9, LOSSES)
    in_ranks(4, train_until, sharded, tmp_path / "sharded", 13, LOSSES)
    parts = (tmp_path / "sharded" / "checkpoints" / "step-00000012" / "parts").iterdir()
    assert sorted(path.name[:10] for path in parts) == [f"rank-{rank:05}" for rank in range(4)]
    train_until(sharded, tmp_path / "sharded", 99, LOSSES)

    expected = losses(RunFolder(tmp_path / "unsharded"))
    assert len(expected) == 16
    # Ranks sum float32 in a different order, and errors grow over sixteen steps.
    assert losses(RunFolder(tmp_path / "sharded")) == pytest.approx(expected, rel=1e-4)
    one, other = (
        checkpoint.newest_intact(tmp_path / run / "checkpoints") for run in ("unsharded", "sharded")
    )
    shapes = [
        one.state()["loss"]["class_weights"].shape,
        other.state()["loss"]["loss.class_weights"].shape,
    ]
    assert shapes[0] == shapes[1]  # a single rank stores all rows
    averages = (last.weights()["head.linear.weight"] for last in (one, other))
    torch.testing.assert_close(
        *averages, rtol=1e-3, atol=1e-4
    )  # reordered sums; some weights are near 0

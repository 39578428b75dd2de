"""Ranks share gradients, gradient norms, and the statistics of batch norms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from train_support.run_traces import losses
from train_support.sharded_ranks import gather_large_gradients, in_ranks, step_as_one, train_until

from dml_train.recipe.checking import parse
from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint
from dml_train.training.build import build

BLOCKS = {"name": "small-conv", "widths": [8, 8]}


def test_ranks_clip_by_one_norm_and_skip_a_step_together():
    in_ranks(2, step_as_one)


@pytest.mark.parametrize(
    "tables",
    [
        {"backbone": BLOCKS, "optimizer": {"layer_decay": 0.5},
         "training": {"steps": 4, "trained_layers": 1, "freeze_batch_norm": True}},
        {"backbone": BLOCKS | {"levels": ["block1", "block2"]},
         "training": {"freeze_batch_norm": True}},
        {"loss": {"name": "tiny-sparse"}, "backbone": {"dropout": 0.0, "norm": False}},
        {"initialisation": {"class_weights": "class-means"},
         "backbone": {"dropout": 0.0, "norm": False}},
    ],
    ids=["frozen layers", "levels", "sparse gradients", "class means"],
)  # fmt: skip
def test_two_ranks_match_one(tiny_document, tmp_path, tables):
    loss = tables.get("loss", {"noise": 0.0})
    document = tiny_document(**{**tables, "loss": loss}, logging={"every": 1})
    train_until(document, tmp_path / "one", 99)
    in_ranks(2, train_until, document, tmp_path / "two", 99)
    one, two = (RunFolder(tmp_path / name) for name in ("one", "two"))
    # Ranks sum float32 in a different order, and errors grow over twelve steps.
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)
    ends = (checkpoint.newest_intact(run.checkpoints).state()["loss"] for run in (one, two))
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-5)


def test_ranks_get_the_float16_gradients_that_one_process_gets():
    in_ranks(2, gather_large_gradients)


@pytest.mark.parametrize(
    "training", [{"steps": 5}, {"steps": 5, "ema_decay": 0.8, "micro_batch": 3}]
)
def test_all_ranks_embed_with_the_saved_statistics(
    tiny_document, registry, quiet, tmp_path, training
):
    document = tiny_document(training=training, embedding={"batch_norm": True})
    in_ranks(2, train_until, document, tmp_path / "run", 99)
    folder, experiment = RunFolder(tmp_path / "run"), build(parse(document, registry), registry)
    experiment.evaluated_model.load_state_dict(
        checkpoint.newest_intact(folder.checkpoints).weights()
    )
    # The ranks' batches contain different images, so float32 sums may have a different order.
    np.testing.assert_allclose(
        np.load(folder.embeddings()), experiment.embed_test(quiet).embeddings, rtol=1e-4, atol=1e-5
    )

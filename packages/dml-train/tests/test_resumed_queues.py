"""A loss that remembers past batches goes on to the same bits, with all else that a run can have beside it."""

from __future__ import annotations

import numpy as np
import pytest
from run_traces import Stop, StopAt, same

import dml_losses.plugin
from dml_train.recipe.checking import parse
from dml_train.training import checkpoint
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
    ],
)
def test_a_queue_goes_on_with_an_average_parts_of_a_batch_and_a_schedule_of_the_loss_inside(
    tiny_registry, tiny_document, quiet, tmp_path, loss, path
):
    tiny_registry.plugins.register(dml_losses.plugin, distribution="dml-losses")
    document = tiny_document(
        training={"ema_decay": 0.9, "micro_batch": 3},
        schedule={path: {"kind": "linear", "start": 0.05, "end": 0.2}},
    )
    recipe = parse({**document, "loss": loss}, tiny_registry)

    def run(name, resume=False):
        return train(recipe, tmp_path / name, resume=resume, registry=tiny_registry, console=quiet)

    whole = run("whole")
    stopper = StopAt(9)
    tiny_registry.plugins.register(stopper, distribution="stopper")
    with pytest.raises(Stop):
        run("cut")
    tiny_registry.plugins.manager.unregister(stopper)
    cut = run("cut", resume=True)

    assert cut.metrics.read_bytes() == whole.metrics.read_bytes()
    assert np.array_equal(np.load(cut.embeddings()), np.load(whole.embeddings()))
    one, other = (checkpoint.newest_intact(folder.checkpoints) for folder in (whole, cut))
    assert same(one.weights(), other.weights())
    assert same(one.state(), other.state())

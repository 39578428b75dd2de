"""Batch norms on several ranks: each normalises its own rows, and all evaluate with the statistics of the first."""

from __future__ import annotations

import numpy as np
import pytest
from train_support.sharded_ranks import in_ranks, train_until

from dml_train.recipe.checking import parse
from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint
from dml_train.training.build import build


@pytest.mark.parametrize("training", [{"steps": 5}, {"steps": 5, "ema_decay": 0.8, "micro_batch": 3}])
def test_all_ranks_embed_with_the_saved_statistics(tiny_document, tiny_registry, quiet, tmp_path, training):
    document = tiny_document(training=training, embedding={"batch_norm": True})
    in_ranks(2, train_until, document, tmp_path / "run", 99)
    folder, experiment = RunFolder(tmp_path / "run"), build(parse(document, tiny_registry), tiny_registry)
    experiment.evaluated_model.load_state_dict(checkpoint.newest_intact(folder.checkpoints).weights())
    # The ranks' batches have other images, so float32 sums may have another order.
    np.testing.assert_allclose(
        np.load(folder.embeddings()), experiment.embed_test(quiet).embeddings, rtol=1e-4, atol=1e-5
    )

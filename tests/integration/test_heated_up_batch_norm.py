"""Heated-up softmax with batch norm, as `dml train` measures it: the head ends in the norm that the loss applies."""

from __future__ import annotations

import torch

from dml_losses import HeatedUpSoftmax
from dml_train.networks.model import EmbeddingHead


def test_a_head_that_ends_in_batch_norm_trains_the_same_and_evaluates_as_the_paper_does():
    torch.manual_seed(0)
    plain, normed = EmbeddingHead(8, 6), EmbeddingHead(8, 6, batch_norm=True)
    normed.load_state_dict(plain.state_dict(), strict=False)
    losses = [HeatedUpSoftmax(4, 6, feature_norm="batch") for _ in range(2)]
    losses[1].load_state_dict(losses[0].state_dict())
    for _ in range(5):
        features, labels = torch.randn(16, 8), torch.arange(16) % 4
        values = [loss(head(features), labels) for head, loss in zip((plain, normed), losses, strict=True)]
        # Normalising twice is normalising once, but for the 1e-5 that is added to a variance each time.
        torch.testing.assert_close(values[1], values[0], rtol=1e-4, atol=1e-4)
    features = torch.randn(5, 8)
    wanted = losses[0].evaluation_embeddings(plain.eval()(features))
    got = torch.nn.functional.normalize(normed.eval()(features))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)

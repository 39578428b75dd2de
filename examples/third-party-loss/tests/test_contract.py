"""Check the properties that the trainer and the wrappers need, by inheriting the toolkit's contract
suite.
"""

from __future__ import annotations

import pytest
import torch
from dml_example_loss import SupervisedContrastive

from dml_core.testing import LossContract


class TestSupervisedContrastive(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> torch.nn.Module:
        return SupervisedContrastive()


def test_two_pairs_at_right_angles_give_the_value_worked_out_by_hand() -> None:
    """Anchors should see a positive with cosine 1 and two negatives with cosine 0: −log(e / (e +
    2)) at τ = 1.
    """
    embeddings = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    value = SupervisedContrastive(temperature=1.0)(embeddings, torch.tensor([0, 0, 1, 1]))
    assert value.item() == pytest.approx(torch.tensor(1 + 2 / torch.e).log().item(), rel=1e-6)

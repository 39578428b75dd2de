"""Read optional attributes of a loss, or use the defaults."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dml_core import centers_per_class_of, class_fraction_of


class Plain(nn.Module):
    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return embeddings.sum()


class Special(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.class_fraction = 0.25
        self.centers_per_class = 3


@pytest.mark.parametrize("wrap", [lambda loss: loss, torch.compile], ids=["plain", "compiled"])
@pytest.mark.parametrize(("loss", "fraction", "centers"), [(Plain, 1, 1), (Special, 0.25, 3)])
def test_attributes_of_a_loss_are_returned_or_their_defaults(loss, fraction, centers, wrap) -> None:
    assert (class_fraction_of(wrap(loss())), centers_per_class_of(wrap(loss()))) == (
        fraction,
        centers,
    )

"""Optional attributes of a loss: existing attributes are read, and a plain loss has a default."""

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
def test_a_loss_without_the_attributes_has_all_classes_and_one_center(wrap) -> None:
    assert class_fraction_of(wrap(Plain())) == 1
    assert centers_per_class_of(wrap(Plain())) == 1


@pytest.mark.parametrize("wrap", [lambda loss: loss, torch.compile], ids=["plain", "compiled"])
def test_the_attributes_of_a_loss_are_returned(wrap) -> None:
    assert class_fraction_of(wrap(Special())) == 0.25
    assert centers_per_class_of(wrap(Special())) == 3

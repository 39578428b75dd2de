"""The contract suite of `dml_core.testing` for every loss that this package registers."""

from __future__ import annotations

import pytest
from torch import nn

import dml_losses.plugin
from dml_core.testing import LossContract
from dml_losses import InstanceCrossEntropy, NormSoftmax


class TestInstanceCrossEntropy(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return InstanceCrossEntropy()


class TestInstanceCrossEntropyPlain(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return InstanceCrossEntropy(reweight=False)


class TestNormSoftmax(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return NormSoftmax(num_classes, embedding_dim)


@pytest.mark.parametrize(
    "component", list(dml_losses.plugin.dml_losses()), ids=lambda component: component.name
)
def test_every_registered_loss_is_held_to_the_contract(component) -> None:
    suites = [cls for cls in globals().values() if isinstance(cls, type) and issubclass(cls, LossContract)]
    made = {type(suite().make_loss(6, 8)) for suite in suites if suite is not LossContract}
    assert component.factory in made

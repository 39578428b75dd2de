"""The contract suite of `dml_core.testing` for all losses that this package registers."""

from __future__ import annotations

import pytest
import torch
from core_support import suite
from losses_support.registered import EVERY

import dml_losses.plugin
from dml_core import Component
from dml_core.testing import LossContract

SUITES = {name: suite(LossContract, make) for name, make in EVERY.items()}
# DistributedDataParallel does not support sparse gradients, so such a loss must not be wrapped.
SUITES["sampled-classes"].test_works_under_ddp = None
globals().update({f"Test {name}": made for name, made in SUITES.items()})
CONTRACT = [name for name in dir(LossContract) if name.startswith("test_")]


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="needs a CUDA device; the suites above run these tests on the CPU",
)
@pytest.mark.parametrize("test", CONTRACT)
@pytest.mark.parametrize("name", SUITES)
def test_the_contract_holds_on_a_gpu(name: str, test: str) -> None:
    instance = SUITES[name]()
    instance.device = "cuda"
    if check := getattr(instance, test):
        check()


@pytest.mark.parametrize(
    "component",
    [
        component
        for component in dml_losses.plugin.dml_losses()
        if not component.name.startswith("pml/")
    ],
    ids=lambda component: component.name,
)
def test_every_registered_loss_has_a_contract_suite(component: Component) -> None:
    made = {type(make(6, 8)) for make in EVERY.values()}
    factory = component.factory
    assert (factory if isinstance(factory, type) else factory.__self__) in made

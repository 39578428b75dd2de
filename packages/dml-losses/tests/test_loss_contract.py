"""The contract suite of `dml_core.testing` for every loss that this package registers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from core_support import suite
from losses_support.registered import REGISTERED, build
from torch import nn

import dml_losses as dml
import dml_losses.plugin
from dml_core import Component
from dml_core.testing import LossContract

MAKE: dict[str, Callable[[int, int], nn.Module]] = {
    **{name: partial(build, name) for name in REGISTERED},
    "instance-cross-entropy, plain": lambda classes, dim: dml.InstanceCrossEntropy(reweight=False),
    "instance-cross-entropy, anchor": lambda classes, dim: dml.InstanceCrossEntropy(anchor_gradient=True),
    "siglip, over ranks": lambda classes, dim: dml.SigLIP(over_ranks=True),
    "heated-up-softmax, batch": lambda classes, dim: dml.HeatedUpSoftmax(classes, dim, feature_norm="batch"),
    # Without warm-up, so that there are virtual classes. ProxyAnchor is called with all rows and classes, joined.
    "memvir": lambda classes, dim: dml.MemVir(dml.NormSoftmax(classes, dim), num_steps=2, margin=0),
    "memvir around proxy-anchor": lambda classes, dim: dml.MemVir(dml.ProxyAnchor(classes, dim), 2, margin=0),
    "matryoshka": lambda classes, dim: dml.Matryoshka(dml.NormSoftmax(classes, dim), [2, dim]),
    "matryoshka of pairs": lambda classes, dim: dml.Matryoshka(dml.SigLIP(), [2, dim]),
    "global-batch": lambda classes, dim: dml.GlobalBatch(dml.NormSoftmax(classes, dim)),
    "sampled-classes": lambda classes, dim: dml.SampledClasses(dml.NormSoftmax(classes, dim), class_fraction=0.7),
    # Without a process group, a single rank has all classes.
    "sharded-classes": lambda classes, dim: dml.ShardedClasses(dml.NormSoftmax(classes, dim)),
    "sharded curricular-face": lambda classes, dim: dml.ShardedClasses(dml.CurricularFace(classes, dim)),
    "broad-face": lambda classes, dim: dml.BroadFace(dml.ArcFace(classes, dim), capacity=12),
    "cross-batch-memory": lambda classes, dim: dml.CrossBatchMemory(dml.InstanceCrossEntropy(), capacity=12),
}  # fmt: skip
SUITES = {name: suite(LossContract, make) for name, make in MAKE.items()}
# DistributedDataParallel takes no sparse gradients, so such a loss stays outside.
SUITES["sampled-classes"].test_works_under_ddp = None
globals().update({f"Test {name}": made for name, made in SUITES.items()})
CONTRACT = [name for name in dir(LossContract) if name.startswith("test_")]


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device; the suites above are its twins on the CPU"
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
    [component for component in dml_losses.plugin.dml_losses() if not component.name.startswith("pml/")],
    ids=lambda component: component.name,
)
def test_every_registered_loss_has_a_contract_suite(component: Component) -> None:
    made = {type(make(6, 8)) for make in MAKE.values()}
    factory = component.factory
    assert (factory if isinstance(factory, type) else factory.__self__) in made

"""The contract suite of `dml_core.testing` for all losses that this package registers."""

from __future__ import annotations

import pytest
import torch
from losses_support.registered import REGISTERED, build
from torch import nn

import dml_losses as dml
import dml_losses.plugin
from dml_core import Component
from dml_core.testing import LossContract


def suite_of(name: str) -> type[LossContract]:
    """Make the suite for a registered loss with default parameters."""

    def make_loss(self: LossContract, num_classes: int, embedding_dim: int) -> nn.Module:
        return build(name, num_classes, embedding_dim)

    return type(f"Test {name}", (LossContract,), {"make_loss": make_loss})


globals().update({suite.__name__: suite for suite in map(suite_of, REGISTERED)})


class TestInstanceCrossEntropyPlain(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.InstanceCrossEntropy(reweight=False)


class TestInstanceCrossEntropyAnchor(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.InstanceCrossEntropy(anchor_gradient=True)


class TestTripletAll(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.Triplet("batch-all")


class TestTripletSemiHard(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.Triplet("semi-hard")


class TestTripletSoft(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.Triplet(margin="soft")


class TestInfoNCEOverRanks(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.InfoNCE(over_ranks=True)


class TestSigLIPOverRanks(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.SigLIP(over_ranks=True)


class TestHeatedUpSoftmaxBatch(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.HeatedUpSoftmax(num_classes, embedding_dim, feature_norm="batch")


class TestMemVir(LossContract):
    """Skip the warm-up, so that the batch is compared with virtual classes, which are constants."""

    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.MemVir(dml.NormSoftmax(num_classes, embedding_dim), num_steps=2, margin=0)


class TestMemVirAroundProxyAnchor(LossContract):
    """Wrap a loss that doesn't take `Virtual`, and so is called with joined rows and classes."""

    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.MemVir(dml.ProxyAnchor(num_classes, embedding_dim), num_steps=2, margin=0)


class TestMatryoshka(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.Matryoshka(dml.NormSoftmax(num_classes, embedding_dim), [2, embedding_dim])


class TestMatryoshkaOfPairs(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.Matryoshka(dml.SigLIP(), [2, embedding_dim])


class TestGlobalBatch(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.GlobalBatch(dml.NormSoftmax(num_classes, embedding_dim))


class TestSampledClasses(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.SampledClasses(dml.NormSoftmax(num_classes, embedding_dim), class_fraction=0.7)

    def test_works_under_ddp(self) -> None:
        """Skip this test: DistributedDataParallel doesn't support sparse gradients, so it must not wrap this loss."""


class TestShardedClasses(LossContract):
    """Use no process group: a single rank has all classes."""

    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.ShardedClasses(dml.NormSoftmax(num_classes, embedding_dim))


class TestShardedCurricularFace(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.ShardedClasses(dml.CurricularFace(num_classes, embedding_dim))


class TestBroadFace(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.BroadFace(dml.ArcFace(num_classes, embedding_dim), capacity=12)


class TestCrossBatchMemory(LossContract):
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return dml.CrossBatchMemory(dml.InstanceCrossEntropy(), capacity=12)


SUITES = [cls for cls in globals().values() if isinstance(cls, type) and issubclass(cls, LossContract)]
SUITES.remove(LossContract)
CONTRACT = [name for name in dir(LossContract) if name.startswith("test_")]


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device; the suites above are its twins on the CPU"
)
@pytest.mark.parametrize("test", CONTRACT)
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.__name__.removeprefix("Test"))
def test_the_contract_holds_on_a_gpu(suite: type[LossContract], test: str) -> None:
    instance = suite()
    instance.device = "cuda"
    getattr(instance, test)()


@pytest.mark.parametrize(
    "component",
    [component for component in dml_losses.plugin.dml_losses() if not component.name.startswith("pml/")],
    ids=lambda component: component.name,
)
def test_every_registered_loss_has_a_contract_suite(component: Component) -> None:
    made = {type(suite().make_loss(6, 8)) for suite in SUITES}
    factory = component.factory
    assert (factory if isinstance(factory, type) else factory.__self__) in made

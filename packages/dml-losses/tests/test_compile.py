"""`torch.compile` makes a single graph of every loss: `fullgraph=True` fails if the graph
breaks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from losses_support import registered, use_blocks
from losses_support.registered import build
from torch import nn

import dml_losses as dml
import dml_losses.plugin
from dml_losses.functional.classes import Virtual, takes_virtual

PAIR_LOSSES = [
    *(build(name, 5, 6) for name in registered.PAIR_LOSSES),
    dml.InstanceCrossEntropy(reweight=False),
]
CLASS_LOSSES = [
    *(build(name, 5, 6) for name in registered.CLASS_LOSSES),
    dml.HeatedUpSoftmax(5, 6, feature_norm="batch"),
    dml.Matryoshka(dml.ArcFace(5, 6), [2, 6]),
    dml.SumOfLosses({"softmax": dml.NormSoftmax(5, 6), "pairs": dml.SupCon()}, {"pairs": 0.3}),
]


@pytest.mark.parametrize(
    "loss", [*PAIR_LOSSES, *CLASS_LOSSES], ids=lambda loss: type(loss).__name__
)
def test_compiles_without_a_graph_break(loss: nn.Module) -> None:
    """Value and gradient must not change; a pair loss is also called with a gallery."""
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    x, y = torch.randn(12, 6, requires_grad=True), torch.arange(12) % 5
    galleries = [(), (torch.randn(7, 6), torch.arange(7) % 3)] if loss in PAIR_LOSSES else [()]
    for gallery in galleries:
        eager = copy.deepcopy(loss)  # a call can change the loss's buffers
        value, expected = compiled(x, y, *gallery), eager(x, y, *gallery)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(torch.autograd.grad(value, x), torch.autograd.grad(expected, x))


@pytest.mark.parametrize("loss", [dml.NormSoftmax(5, 6), dml.CurricularFace(5, 6)], ids=repr)
def test_passes_over_blocks_compile(loss: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks(monkeypatch, kept=False, size=2)
    test_compiles_without_a_graph_break(loss)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda loss: dml.MemVir(loss(dml.NormSoftmax(5, 6)), 2, 0),
        lambda loss: dml.MemVir(loss(dml.ProxyAnchor(5, 6)), 2, 0),
        lambda loss: dml.CrossBatchMemory(loss(dml.InstanceCrossEntropy()), capacity=12),
        lambda loss: dml.BroadFace(loss(dml.ArcFace(5, 6)), capacity=12),
    ],
    ids=["memvir", "memvir-proxy-anchor", "cross-batch-memory", "broad-face"],
)
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # dynamo reads it
def test_a_memory_takes_a_compiled_loss_and_stops_recompiling(
    wrap: Callable[[Callable[[nn.Module], nn.Module]], nn.Module],
) -> None:
    """The wrapper counts in Python, and the loss is computed using a single graph per shape."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    losses = []
    for compiled in (
        lambda loss: torch.compile(loss, fullgraph=True, backend="aot_eager"),
        lambda loss: loss,
    ):
        torch.manual_seed(0)
        losses.append(wrap(compiled))
    for seed in range(12):
        torch.manual_seed(seed)
        x, y = torch.randn(8, 6), torch.arange(8) % 5
        torch.testing.assert_close(losses[0](x, y), losses[1](x, y))
    # At most one graph is compiled for each state of the memory: empty, partly filled and full.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 3


def test_memvir_still_gives_a_compiled_loss_the_past_as_constants() -> None:
    seen: list[bool] = []

    class Recording(dml.NormSoftmax):
        @takes_virtual
        def forward(self, embeddings, labels, class_weights=None):  # type: ignore[no-untyped-def]
            seen.append(isinstance(class_weights, Virtual))
            return super().forward(embeddings, labels, class_weights)

    torch.compiler.reset()
    loss = dml.MemVir(torch.compile(Recording(5, 6), backend="eager"), 1, 0)
    for _ in range(2):
        loss(torch.randn(8, 6), torch.arange(8) % 5)
    assert seen == [False, True]


def test_every_registered_loss_is_compiled_or_a_wrapper() -> None:
    wrappers = {
        dml.MemVir,
        dml.CrossBatchMemory,
        dml.BroadFace,
        dml.SampledClasses,
        dml.ShardedClasses,
    }
    compiled = {type(loss) for loss in [*PAIR_LOSSES, *CLASS_LOSSES]}
    for component in dml_losses.plugin.dml_losses():
        if not component.name.startswith("pml/"):
            factory = component.factory
            kind = factory if isinstance(factory, type) else factory.__self__
            assert kind in compiled | wrappers, component.name

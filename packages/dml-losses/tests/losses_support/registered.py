"""The registered losses that only need the numbers of classes and dimensions, built with default
options.

Tests that iterate over these losses also apply to a new loss.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

from torch import nn

import dml_losses as dml
from dml_losses import plugin

_SIZES = ("num_classes", "embedding_dim")


def _required(factory: Callable[..., nn.Module]) -> list[str]:
    parameters = inspect.signature(factory).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


REGISTERED: dict[str, Callable[..., nn.Module]] = {
    component.name: component.factory
    for component in plugin.dml_losses()
    if not component.name.startswith("pml/") and {*_required(component.factory)} <= {*_SIZES}
}
CLASS_LOSSES = [name for name, factory in REGISTERED.items() if "num_classes" in _required(factory)]
PAIR_LOSSES = [name for name in REGISTERED if name not in CLASS_LOSSES]


def build(name: str, num_classes: int, embedding_dim: int, **options: float) -> nn.Module:
    """Build a loss; by default, with default parameters."""
    return REGISTERED[name](
        *(num_classes, embedding_dim) if name in CLASS_LOSSES else (), **options
    )


# Makers of all registered losses, variants, and wrappers, given the numbers of classes and
# dimensions.
EVERY: dict[str, Callable[[int, int], nn.Module]] = {
    **{name: partial(build, name) for name in REGISTERED},
    "instance-cross-entropy, plain": lambda classes, dim: dml.InstanceCrossEntropy(reweight=False),
    "instance-cross-entropy, anchor": lambda classes,
    dim: dml.InstanceCrossEntropy(anchor_gradient=True),
    "triplet, all": lambda classes, dim: dml.Triplet("batch-all"),
    "triplet, semi-hard": lambda classes, dim: dml.Triplet("semi-hard"),
    "triplet, soft": lambda classes, dim: dml.Triplet(margin="soft"),
    "info-nce, over ranks": lambda classes, dim: dml.InfoNCE(over_ranks=True),
    "siglip, over ranks": lambda classes, dim: dml.SigLIP(over_ranks=True),
    "heated-up-softmax, batch": lambda classes,
    dim: dml.HeatedUpSoftmax(classes, dim, feature_norm="batch"),
    # MemVir does not warm up here, so it will add virtual classes; ProxyAnchor is given all rows
    # and classes joined.
    "memvir": lambda classes, dim: dml.MemVir(dml.NormSoftmax(classes, dim), num_steps=2, margin=0),
    "memvir around proxy-anchor": lambda classes,
    dim: dml.MemVir(dml.ProxyAnchor(classes, dim), 2, margin=0),
    "matryoshka": lambda classes, dim: dml.Matryoshka(dml.NormSoftmax(classes, dim), [2, dim]),
    "matryoshka of pairs": lambda classes, dim: dml.Matryoshka(dml.SigLIP(), [2, dim]),
    "global-batch": lambda classes, dim: dml.GlobalBatch(dml.NormSoftmax(classes, dim)),
    "memvir, queue on the CPU": lambda classes, dim: dml.MemVir(
        dml.NormSoftmax(classes, dim), 2, 0, queue_on_cpu=True
    ),
    "sampled-classes": lambda classes,
    dim: dml.SampledClasses(dml.NormSoftmax(classes, dim), class_fraction=0.7),
    # When there is no process group, a single rank has all classes.
    "sharded-classes": lambda classes, dim: dml.ShardedClasses(dml.NormSoftmax(classes, dim)),
    "sharded curricular-face": lambda classes,
    dim: dml.ShardedClasses(dml.CurricularFace(classes, dim)),
    "sharded virtual-softmax": lambda classes,
    dim: dml.ShardedClasses(dml.VirtualSoftmax(classes, dim)),
    "broad-face": lambda classes, dim: dml.BroadFace(dml.ArcFace(classes, dim), capacity=12),
    "cross-batch-memory": lambda classes,
    dim: dml.CrossBatchMemory(dml.InstanceCrossEntropy(), capacity=12),
    "sum": lambda classes, dim: dml.SumOfLosses(
        {"class": dml.ArcFace(classes, dim), "pair": dml.CrossBatchMemory(dml.SupCon(), 12),
         "spread": dml.KoLeo()},
        {"spread": 0.1},
    ),
}  # fmt: skip

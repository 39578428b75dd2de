"""The losses as a plugin: what `dml_core` finds through the entry point of the group ``dml``."""

from __future__ import annotations

from collections.abc import Iterable

from dml_core import Component, hookimpl
from dml_losses.instance_cross_entropy import InstanceCrossEntropy
from dml_losses.norm_softmax import NormSoftmax


@hookimpl
def dml_losses() -> Iterable[Component]:
    """Every loss of this package, by its registry name."""
    yield Component(
        "instance-cross-entropy",
        InstanceCrossEntropy,
        "softmax of each positive against its anchor's negatives, reweighted per anchor",
        source="Instance Cross Entropy for Deep Metric Learning, Eq. 3-15",
    )
    yield Component(
        "norm-softmax",
        NormSoftmax,
        "softmax cross entropy of cosines with class weights over a temperature",
        source="Making Classification Competitive for Deep Metric Learning, Eq. 5",
    )

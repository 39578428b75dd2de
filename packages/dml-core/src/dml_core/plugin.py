"""The components of dml-core, provided by the same hooks as any plugin's."""

from __future__ import annotations

from collections.abc import Iterable

from dml_core.components import Component
from dml_core.hookspecs import hookimpl


@hookimpl
def dml_samplers() -> Iterable[Component]:
    """List the samplers of `dml_core.samplers`."""
    yield Component(
        "class-balanced",
        "dml_core.samplers:ClassBalancedSampler",
        "C classes x K images per batch, all classes equally often",
    )
    yield Component(
        "shuffled",
        "dml_core.samplers:ShuffledSampler",
        "all images once per epoch, in random order",
    )
    yield Component(
        "hard-negatives",
        "dml_core.mining:HardNegativeSampler",
        "C classes x K images per batch, including classes of mined hard negatives",
        source="Xiong et al. 2021, ANCE; Smirnov et al. 2017, Doppelganger Mining",
    )

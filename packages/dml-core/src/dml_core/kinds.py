"""The kinds of components, and the context values that a run passes to factories by kind."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

Kind = Literal["losses", "samplers", "backbones", "datasets", "evaluators", "loggers"]

# The values that a run supplies, by kind. A factory receives a value if it has an option of this
# name.
CONTEXT: Mapping[Kind, tuple[str, ...]] = MappingProxyType(
    {
        # num_classes: of the training split; steps_per_epoch: the sampler's batches per epoch
        "losses": ("num_classes", "embedding_dim", "steps_per_epoch", "seed"),
        "samplers": ("labels", "seed"),  # labels: (N,), of the training split
        "backbones": (
            "in_channels",
            "pretrained",
        ),  # pretrained: False if a checkpoint is loaded afterwards
        "datasets": ("seed",),
        "evaluators": ("seed",),
        # directory: the run's folder; start_step: steps done before this start; recipe: as a dict
        "loggers": ("directory", "start_step", "recipe"),
    }
)
KINDS: tuple[Kind, ...] = tuple(CONTEXT)
SINGULAR: Mapping[Kind, str] = MappingProxyType(
    {kind: "loss" if kind == "losses" else kind.removesuffix("s") for kind in KINDS}
)

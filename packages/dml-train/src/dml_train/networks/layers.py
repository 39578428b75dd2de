"""The layers of a backbone, from the image on: choose which layers train, and their learning rates."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from dml_core import InvalidOption, LayeredBackbone


def layers_of(backbone: nn.Module, wanted_by: str) -> list[list[nn.Parameter]]:
    """List a backbone's parameters by layer, from the image on; each parameter is in one layer.

    Raise an `InvalidOption` if the backbone isn't a `LayeredBackbone`, or doesn't list each parameter once, with
    `wanted_by`, the recipe's key that needs layers.
    """
    if not isinstance(backbone, LayeredBackbone):
        raise InvalidOption(
            f"{wanted_by} is given, but the backbone {type(backbone).__name__} doesn't list its layers "
            "(dml_core.LayeredBackbone); use timm, bn-inception or small-conv, or omit it"
        )
    layers = [list(layer) for layer in backbone.parameters_by_layer()]
    listed = [id(parameter) for layer in layers for parameter in layer]
    if sorted(listed) != sorted(id(parameter) for parameter in backbone.parameters()):
        raise InvalidOption(
            f"{wanted_by} is given, but parameters_by_layer() of {type(backbone).__name__} lists {len(listed)} "
            f"parameters; expected each of its {sum(1 for _ in backbone.parameters())} once"
        )
    return layers


def freeze_early_layers(backbone: nn.Module, trained: int) -> None:
    """Freeze all layers of a backbone except the last `trained`; 0 freezes the whole backbone."""
    if trained == 0:
        backbone.requires_grad_(False)
        return
    layers = layers_of(backbone, "training.trained_layers")
    if trained > len(layers):
        raise InvalidOption(
            f"training.trained_layers is {trained}, but the backbone has {len(layers)} layers; reduce trained_layers"
        )
    for layer in layers[: len(layers) - trained]:
        for parameter in layer:
            parameter.requires_grad_(False)


def layer_scales(layers: Sequence[Sequence[nn.Parameter]], decay: float) -> dict[int, float]:
    """Compute each parameter's factor of the learning rate, by id: ``decay^(L - l)`` in layer l of L.

    Source: Clark et al. 2020, ELECTRA, Sec. 3.1 ("layerwise learning-rate decay").
    """
    last = len(layers) - 1
    return {id(parameter): decay ** (last - k) for k, layer in enumerate(layers) for parameter in layer}

"""Any classification model of torchvision except for the classifier, with features from one or more
depths.

The functions, not the module, import torchvision, since the import takes seconds.

Shapes: `B` batch, `F` features, `H`, `W` height and width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from dml_core import DmlError, InvalidOption, nearest
from dml_train.networks.backbones.options import (
    adapt_first_convolution,
    check_levels,
    load_state,
    one_or_all,
    read_state,
)

_Form = Literal["map", "map, channels last", "tokens", "vector"]

# The attributes of torchvision's models that contain classifiers, including auxiliary classifiers
# for training.
_UNUSED = frozenset({"classifier", "fc", "head", "heads", "aux1", "aux2", "AuxLogits"})
_TRACED_SIZE = 224  # pixels per side; every torchvision model accepts it


class TorchvisionModel(nn.Module):
    """The feature maps of a torchvision model before global pooling, or at the given nodes.

    A vision transformer doesn't compute maps; the features are the class token's vector, at any
    depth.

    Args:
        in_channels, pretrained: see `dml_train.networks.backbones.options`.
        model: a name of ``torchvision.models.list_models()``, e.g. ``"resnet50"``.
        weights: None (random), the name of torchvision's weights (``"DEFAULT"``,
            ``"IMAGENET1K_V1"``; downloaded once), or a file. For GoogLeNet and Inception, use the
            names: only then do these models rescale the input as the weights expect.
        levels: nodes of the model's graph to use as features: whole modules (``"layer2"``,
            ``"features.5"``) or nodes in them (``"layer2.0.add"``); default: the last maps.
        last_stride: stride of a ResNet's last stage; 1 doubles the height and width of the last
            maps, as in Luo et al. 2019, Bag of Tricks and a Strong Baseline for Deep Person
            Re-identification, Sec. 3.4.

    Raises:
        InvalidOption: if a model, level or weights are unknown (the message suggests the nearest
            name), a level doesn't give maps, or `last_stride` is 1 and the model isn't a ResNet.
        DmlError: if weights can't be downloaded or read, or don't fit the model.
    """

    def __init__(
        self,
        in_channels: int,
        model: str = "resnet18",
        weights: str | None = None,
        levels: Sequence[str] = (),
        last_stride: Literal[1, 2] = 2,
        pretrained: bool = True,
    ) -> None:
        from torchvision import models
        from torchvision.models.feature_extraction import (
            create_feature_extractor,
            get_graph_node_names,
        )

        super().__init__()
        network = _build(model, weights, pretrained)
        if last_stride == 1:
            _remove_last_stride(network, model)
        if in_channels != 3:
            adapt_first_convolution(network, in_channels, keep=weights is not None)
            if isinstance(network, models.Inception3 | models.GoogLeNet):
                network.transform_input = False  # the transform needs three colours
        _, names = get_graph_node_names(network, suppress_diff_warning=True)
        # The nodes up to the pooling or classifier, in the order of computation.
        nodes = [name for name in names if name.partition(".")[0] not in (*_UNUSED, "avgpool")]
        # A module's name refers to the last node in the module.
        modules = {
            node.rsplit(".", depth)[0] for node in nodes for depth in range(1, node.count(".") + 1)
        }
        check_levels(levels, [*nodes, *sorted(modules - {*nodes})], model)
        if not levels and isinstance(network, models.VisionTransformer):
            levels = ["encoder.ln"]
        shapes = _shapes(network, list(levels) or nodes, in_channels)
        if not levels:  # the last maps
            levels = [node for node, shape in shapes.items() if len(shape) == 4 and shape[-1] > 1][
                -1:
            ]
        self._levels = tuple(levels)
        self._forms = [_form(level, shapes.get(level)) for level in levels]
        self.trunk: nn.Module = create_feature_extractor(network, list(levels))
        forms = zip(levels, self._forms, strict=True)
        self.num_features = one_or_all(
            [shapes[level][1 if form == "map" else -1] for level, form in forms]
        )

    def forward(self, images_BCHW: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Map (B, in_channels, H, W) to (B, num_features[, h, w]), or to a tuple for multiple
        levels.
        """
        outputs: dict[str, Tensor] = self.trunk(images_BCHW)
        features = []
        for level, form in zip(self._levels, self._forms, strict=True):
            output = outputs[level]
            if form == "map, channels last":
                output = output.permute(0, 3, 1, 2)
            features.append(output[:, 0] if form == "tokens" else output)
        return one_or_all(features)


def _build(model: str, weights: str | None, pretrained: bool) -> nn.Module:
    """Create the model, including the classifier, and load the weights."""
    from torchvision import models

    known = models.list_models(module=models)
    if model not in known:
        raise InvalidOption(
            f"torchvision has no classification model {model!r}{nearest(model, known)} "
            f"torchvision.models.list_models(module=torchvision.models) lists all {len(known)}"
        )
    names = ["DEFAULT", *models.get_model_weights(model).__members__]
    if pretrained and weights in names:
        try:
            downloaded: nn.Module = models.get_model(model, weights=weights)
        except OSError as error:
            raise DmlError(
                f"could not download the weights {weights!r} of {model} ({error}); download the "
                "file on a different machine and give the path, e.g. weights = 'resnet50.pth'"
            ) from error
        return downloaded
    # GoogLeNet and Inception include auxiliary classifiers, which aren't needed.
    options = (
        {"aux_logits": False, "init_weights": True}
        if model in ("googlenet", "inception_v3")
        else {}
    )
    network: nn.Module = models.get_model(model, weights=None, **options)
    if weights in names:
        if isinstance(network, models.Inception3 | models.GoogLeNet):
            network.transform_input = True  # as torchvision does with these weights
    elif weights is not None and pretrained:
        expected = (
            f"a file, or one of torchvision's names{nearest(weights, names)} names: "
            f"{', '.join(names)}"
        )
        state = read_state(weights, expected)
        load_state(
            network, state, weights, "the state dict of the same model of torchvision", _classifies
        )
    return network


def _remove_last_stride(network: nn.Module, model: str) -> None:
    """Set the stride of all convolutions in a ResNet's last stage to 1; the weights fit as
    before.
    """
    from torchvision import models

    if not isinstance(network, models.ResNet):
        raise InvalidOption(f"backbone.last_stride is 1, and {model} isn't a ResNet; omit it")
    for module in network.layer4.modules():
        if isinstance(module, nn.Conv2d):
            module.stride = (1, 1)


def _classifies(name: str) -> bool:
    return name.partition(".")[0] in _UNUSED


def _shapes(
    network: nn.Module, nodes: Sequence[str], in_channels: int
) -> dict[str, tuple[int, ...]]:
    """Find the shapes of the nodes' outputs for an image; values aren't computed."""
    from torchvision.models.feature_extraction import create_feature_extractor

    traced = create_feature_extractor(copy.deepcopy(network).to("meta").eval(), list(nodes))
    with torch.no_grad():
        outputs = traced(torch.zeros(1, in_channels, _TRACED_SIZE, _TRACED_SIZE, device="meta"))
    return {
        node: tuple(output.shape) for node, output in outputs.items() if isinstance(output, Tensor)
    }


def _form(level: str, shape: tuple[int, ...] | None) -> _Form:
    """Find the form of a level's output from the shape for a square image."""
    match shape:
        case (_, _, height, width) if height == width:
            return "map"
        case (_, height, width, _) if height == width:
            return "map, channels last"
        case (_, _, _):
            return "tokens"
        case (_, _):
            return "vector"
    raise InvalidOption(
        f"backbone.levels names {level!r}, with output shape {shape}; expected maps (1, F, h, w) "
        "or (1, h, w, F), tokens (1, T, F) or a vector (1, F)"
    )

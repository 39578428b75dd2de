"""Any classification model of torchvision, without its classifier.

Shapes: `B` batch, `F` features, `H`, `W` height and width.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

from dml_core import DmlError, InvalidOption, nearest

# The attributes of torchvision's models that hold what comes after the features, or beside them in training.
_UNUSED = frozenset({"classifier", "fc", "head", "heads", "aux1", "aux2", "AuxLogits"})
_TRACED_SIZE = 224  # pixels a side; what every model of torchvision takes


class TorchvisionModel(nn.Module):
    """The feature maps that a torchvision model has before its global pooling.

    A vision transformer has none; its features are the class token's vector.

    Args:
        in_channels: of the images. For other than 3 the first convolution is replaced: with given weights by their
            mean over the colours (times ``3 / in_channels``), so that a grey picture gives what it gave as colour.
        model: a name of ``torchvision.models.list_models()``, e.g. ``"resnet50"``.
        weights: None (random), the name of torchvision's weights (``"DEFAULT"``, ``"IMAGENET1K_V1"``; downloaded
            once), or a file: a state dict of the model with or without its classifier, ``.safetensors`` or saved by
            ``torch.save`` (read with ``weights_only=True``, so that loading runs no code).

    Attributes:
        num_features: F.

    Raises:
        InvalidOption: an unknown model or weights, with the nearest name.
        DmlError: weights that can't be had, read, or don't fit the model.
        ValueError: `in_channels` below 1.
    """

    def __init__(self, in_channels: int, model: str = "resnet18", weights: str | None = None) -> None:
        super().__init__()
        if in_channels < 1:
            raise ValueError(f"in_channels is {in_channels}; expected at least 1")
        network = _build(model, weights)
        if in_channels != 3:
            _adapt_first_convolution(network, in_channels, keep=weights is not None)
        self.trunk: nn.Module
        if isinstance(network, models.VisionTransformer):
            self.num_features = int(network.hidden_dim)
            network.heads = nn.Identity()
            self.trunk = network
        else:
            node, self.num_features = _last_feature_map(network, in_channels)
            self.trunk = create_feature_extractor(network, {node: "features"})

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """(B, in_channels, H, W) to (B, num_features, h, w); from a vision transformer (B, num_features)."""
        features: Tensor | dict[str, Tensor] = self.trunk(images_BCHW)
        return features["features"] if isinstance(features, dict) else features


def _build(model: str, weights: str | None) -> nn.Module:
    """The whole model, classifier included, with its weights."""
    known = models.list_models(module=models)
    if model not in known:
        raise InvalidOption(
            f"torchvision has no classification model {model!r}{nearest(model, known)} "
            f"It has {len(known)}: torchvision.models.list_models(module=torchvision.models) lists them"
        )
    if weights is None:
        return _plain(model)
    names = ["DEFAULT", *models.get_model_weights(model).__members__]
    if weights in names:
        try:
            network: nn.Module = models.get_model(model, weights=weights)
        except OSError as error:
            raise DmlError(
                f"could not download the weights {weights!r} of {model} ({error}); download them elsewhere and "
                "give their file, e.g. weights = 'resnet50.pth'"
            ) from error
        return network
    file = Path(weights).expanduser()
    if not file.is_file():
        raise InvalidOption(
            f"weights of {model} are {weights!r}: no such file, and torchvision has none of that name"
            f"{nearest(weights, names)} names: {', '.join(names)}"
        )
    network = _plain(model)
    _load(network, _read(file), file)
    return network


def _plain(model: str) -> nn.Module:
    """The model with random weights, without the auxiliary classifiers that two families have."""
    options = {"aux_logits": False, "init_weights": True} if model in ("googlenet", "inception_v3") else {}
    network: nn.Module = models.get_model(model, weights=None, **options)
    return network


def _read(file: Path) -> dict[str, Tensor]:
    """A state dict.

    Raises:
        DmlError: if the file doesn't hold one.
    """
    try:
        if file.suffix == ".safetensors":
            state: Any = safetensors.torch.load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except (
        OSError,
        RuntimeError,
        EOFError,
        ValueError,
        pickle.UnpicklingError,
        safetensors.SafetensorError,
    ) as error:
        raise DmlError(
            f"can't read the weights {file}: {error}; expected a state dict, .safetensors or saved by torch.save"
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise DmlError(
            f"{file} holds a {type(state).__name__}; expected a state dict, tensors by parameter name"
        )
    return dict(state)


def _load(network: nn.Module, state: dict[str, Tensor], file: Path) -> None:
    """Everything but what classifies, which may be missing, of another size, or there and unused.

    Raises:
        DmlError: if anything else is missing, unknown or of another shape.
    """
    wanted = {name: tensor for name, tensor in network.state_dict().items() if not _classifies(name)}
    given = {name: tensor for name, tensor in state.items() if not _classifies(name)}
    # Files from before batch norm counted its batches lack the count, which nothing here uses.
    missing = [n for n in wanted if n not in given and not n.endswith("num_batches_tracked")]
    unknown = [n for n in given if n not in wanted]
    shaped = [n for n in wanted if n in given and wanted[n].shape != given[n].shape]
    for names, fault in ((missing, "lacks"), (unknown, "has the unknown")):
        if names:
            hint = nearest(names[0], given if fault == "lacks" else wanted)
            raise DmlError(
                f"the weights {file} don't fit {type(network).__name__}: the file {fault} {names[0]!r}{hint} "
                f"({len(names)} such names); expected the state dict of the same model of torchvision"
            )
    if shaped:
        raise DmlError(
            f"the weights {file} don't fit {type(network).__name__}: {shaped[0]!r} has shape "
            f"{tuple(given[shaped[0]].shape)}; expected {tuple(wanted[shaped[0]].shape)} ({len(shaped)} such names)"
        )
    network.load_state_dict(given, strict=False)


def _classifies(name: str) -> bool:
    return name.partition(".")[0] in _UNUSED


def _adapt_first_convolution(network: nn.Module, in_channels: int, keep: bool) -> None:
    """Replace the first convolution by one for so many channels; `keep` says whether its weights mean something."""
    name, first = next((n, m) for n, m in network.named_modules() if isinstance(m, nn.Conv2d))
    new = nn.Conv2d(
        in_channels,
        first.out_channels,
        first.kernel_size,  # type: ignore[arg-type]
        first.stride,  # type: ignore[arg-type]
        first.padding,  # type: ignore[arg-type]
        bias=first.bias is not None,
    )
    if keep:
        with torch.no_grad():
            new.weight.copy_(first.weight.mean(dim=1, keepdim=True) * (3.0 / in_channels))
            if first.bias is not None and new.bias is not None:
                new.bias.copy_(first.bias)
    parent, _, attribute = name.rpartition(".")
    setattr(network.get_submodule(parent), attribute, new)
    if isinstance(network, models.Inception3 | models.GoogLeNet):
        network.transform_input = False  # it takes three colours apart


def _last_feature_map(network: nn.Module, in_channels: int) -> tuple[str, int]:
    """The name of the node whose output is the last one with positions, and its channels."""
    traced = create_feature_extractor(network.eval(), _node_names(network))
    with torch.no_grad():
        outputs = traced(torch.zeros(1, in_channels, _TRACED_SIZE, _TRACED_SIZE))
    maps = [
        (name, output.shape[1])
        for name, output in outputs.items()
        if isinstance(output, Tensor) and output.ndim == 4 and output.shape[-1] > 1
    ]
    network.train()
    return maps[-1]


def _node_names(network: nn.Module) -> list[str]:
    """The outputs between the image and the pooling or classifier, in the order of computation."""
    _, names = get_graph_node_names(network, suppress_diff_warning=True)
    return [name for name in names if name.partition(".")[0] not in (*_UNUSED, "avgpool")]

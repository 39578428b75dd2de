"""A small convolutional network for small images, such as glyphs.

Shapes: `B` batch, `F` features, `H`, `W` height and width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from dml_train.networks.backbones.options import check_levels, one_or_all

MOST_LAYERS = 1000  # a larger number is almost certainly a typo, and could exhaust the memory


class SmallConv(nn.Module):
    """Blocks of convolutions, to train from scratch in minutes.

    A block contains `depth` 3 × 3 convolutions, each followed by a norm and ReLU. All blocks except
    the last halve height and width by 2 × 2 max pooling between the last convolution and the norm.

    Args:
        in_channels: number of channels of the images.
        widths: number of channels per block.
        depth: number of convolutions per block.
        stride: stride of the very first convolution.
        norm: "batch"; or "group", over groups of 8 channels in an image, so that an image's
            features depend neither on the other images in the batch nor on the number of ranks.
        levels: the blocks to use as features, ``"block1"``, ``"block2"``, …; default: the last
            block.

    Raises:
        ValueError: if a size is empty or not positive, or there are more than `MOST_LAYERS`
            convolutions.
        InvalidOption: if a level is unknown or given twice.
    """

    def __init__(
        self,
        in_channels: int,
        widths: Sequence[int] = (32, 64, 128, 256),
        depth: int = 1,
        stride: int = 1,
        norm: Literal["batch", "group"] = "batch",
        levels: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if (
            not widths
            or min(*widths, depth, stride, in_channels) < 1
            or depth * len(widths) > MOST_LAYERS
        ):
            raise ValueError(
                f"in_channels is {in_channels}, widths {list(widths)}, depth {depth}, stride "
                f"{stride}; expected at least one width, no number below 1, and at most "
                f"{MOST_LAYERS} convolutions in all"
            )
        if norm == "group" and any(width % 8 for width in widths):
            raise ValueError(
                f"widths are {list(widths)}; expected multiples of 8 with norm 'group'"
            )
        names = [f"block{number}" for number in range(1, len(widths) + 1)]
        check_levels(levels, names, "small-conv")
        chosen = [names.index(level) for level in levels] or [len(widths) - 1]
        layers: list[nn.Module] = []
        ends: list[int] = []  # by block, the number of layers up to the end of the block
        channels = in_channels
        for block, width in enumerate(widths[: max(chosen) + 1]):
            for place in range(depth):
                step = stride if block == place == 0 else 1
                layers.append(nn.Conv2d(channels, width, 3, stride=step, padding=1, bias=False))
                if place == depth - 1 and block < len(widths) - 1:
                    # Pool before norm and ReLU, which then have a quarter of the work.
                    layers.append(nn.MaxPool2d(2))
                layers += [
                    nn.BatchNorm2d(width) if norm == "batch" else nn.GroupNorm(width // 8, width),
                    nn.ReLU(inplace=True),
                ]
                channels = width
            ends.append(len(layers))
        self.layers = nn.Sequential(*layers)
        self._ends = [ends[block] for block in chosen]
        self.num_features = one_or_all([widths[block] for block in chosen])

    def parameters_by_layer(self) -> list[list[nn.Parameter]]:
        """List the parameters of each convolution with the following norm, from the first layer to
        the last.
        """
        grouped: list[list[nn.Parameter]] = []
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                grouped.append([])
            grouped[-1] += layer.parameters()
        return grouped

    def forward(self, images_BCHW: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Map (B, in_channels, H, W) to (B, num_features, h, w), or to a tuple for multiple
        levels.
        """
        outputs: dict[int, Tensor] = {}
        features = images_BCHW
        for place, layer in enumerate(self.layers, start=1):
            features = layer(features)
            if place in self._ends:
                outputs[place] = features
        return one_or_all([outputs[end] for end in self._ends])

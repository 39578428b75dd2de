"""Backbones: the networks for a recipe's ``[backbone]`` table."""

from __future__ import annotations

from dml_train.networks.backbones.bn_inception import BNInception
from dml_train.networks.backbones.small_conv import SmallConv
from dml_train.networks.backbones.timm_model import TimmModel
from dml_train.networks.backbones.torchvision_model import TorchvisionModel

__all__ = ["BNInception", "SmallConv", "TimmModel", "TorchvisionModel"]

"""Backbones: the networks for a recipe's ``[backbone]`` table."""

from __future__ import annotations

from dml_core import Component
from dml_train.networks.backbones.bn_inception import BNInception
from dml_train.networks.backbones.small_conv import SmallConv
from dml_train.networks.backbones.timm_model import TimmModel
from dml_train.networks.backbones.torchvision_model import TorchvisionModel

__all__ = ["BNInception", "SmallConv", "TimmModel", "TorchvisionModel", "components"]


def components() -> tuple[Component, ...]:
    """Return the backbones of this package."""
    return (
        Component(
            "small-conv", SmallConv, "a few blocks of convolutions for small images, trained in minutes"
        ),
        Component(
            "bn-inception",
            BNInception,
            "BN-Inception (GoogLeNet V2), the papers' backbone, with the file of the published weights",
            source="Ioffe & Szegedy 2015, Batch Normalization, figure 5",
        ),
        Component(
            "timm",
            TimmModel,
            "any model of timm by name, without its classifier; needs the extra dml-train[timm]",
            source="https://huggingface.co/docs/timm",
        ),
        Component(
            "torchvision",
            TorchvisionModel,
            "any classification model of torchvision by name, without its classifier; own weights or torchvision's",
            source="https://docs.pytorch.org/vision/stable/models.html",
        ),
    )

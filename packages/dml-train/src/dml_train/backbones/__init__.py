"""Backbones: the networks that a recipe's ``[backbone]`` table can name."""

from __future__ import annotations

from dml_core import Component
from dml_train.backbones.small_conv import SmallConv
from dml_train.backbones.torchvision_model import TorchvisionModel

__all__ = ["SmallConv", "TorchvisionModel", "components"]


def components() -> tuple[Component, ...]:
    """The backbones that this package provides."""
    return (
        Component(
            "small-conv", SmallConv, "a few blocks of convolutions for small pictures, trained in minutes"
        ),
        Component(
            "torchvision",
            TorchvisionModel,
            "any classification model of torchvision by name, without its classifier; own weights or torchvision's",
            source="https://docs.pytorch.org/vision/stable/models.html",
        ),
    )

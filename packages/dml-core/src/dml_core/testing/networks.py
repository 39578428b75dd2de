"""The contract of backbones. Shapes: `B` batch, `F` features."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn


class BackboneContract(ABC):
    """The properties of backbones that the head and the trainer need.

    Override `image_size` and `in_channels` if the network needs different values.
    """

    image_size = 64
    in_channels = 3

    @abstractmethod
    def make_backbone(self, in_channels: int) -> Any:
        """Make the backbone: it should be small, and weights should not be downloaded."""

    def test_is_a_module_that_says_its_width(self) -> None:
        """The backbone must be an `nn.Module`, with an integer or a tuple of integers as
        `num_features`.
        """
        backbone = self._backbone()
        assert isinstance(backbone, nn.Module), (
            f"got a {type(backbone).__name__}; expected an nn.Module"
        )
        widths = self._widths(backbone)
        assert all(isinstance(width, int) and width > 0 for width in widths), (
            f"num_features is {widths}"
        )

    def test_features_have_the_stated_width(self) -> None:
        """Images (B, channels, h, w) must be mapped to (B, F, h', w') or (B, F), per depth."""
        backbone, images = self._backbone(), self._images()
        features = self._features(backbone, images)
        widths = self._widths(backbone)
        assert len(features) == len(widths), (
            f"{len(features)} features; expected the widths {widths}"
        )
        for feature, width in zip(features, widths, strict=True):
            assert feature.ndim in (2, 4), (
                f"features are {tuple(feature.shape)}; expected (B, F) or maps"
            )
            assert feature.shape[:2] == (len(images), width), (
                f"features have shape {tuple(feature.shape)}; expected ({len(images)}, {width}, …)"
            )
            assert feature.is_floating_point(), f"features have dtype {feature.dtype}"

    def test_is_finite_under_autocast(self) -> None:
        """Features must be finite under bfloat16 autocast."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for feature in self._features(self._backbone(), self._images()):
                assert torch.isfinite(feature).all(), "features aren't finite under autocast"

    def test_gradient_reaches_every_parameter(self) -> None:
        """All trainable parameters must get a gradient, since DistributedDataParallel stops
        otherwise.
        """
        backbone = self._backbone().train()
        total = torch.stack(
            [feature.square().sum() for feature in self._features(backbone, self._images())]
        ).sum()
        total.backward()  # type: ignore[no-untyped-call]
        without = [
            name for name, p in backbone.named_parameters() if p.requires_grad and p.grad is None
        ]
        assert not without, f"no gradient reaches the parameters {without[:5]}"

    def test_evaluates_each_image_alone(self) -> None:
        """In evaluation mode, an image's features must not depend on the rest of the batch."""
        backbone, images = self._backbone().eval(), self._images()
        with torch.no_grad():
            together, alone = self._features(backbone, images), self._features(backbone, images[:1])
        for all_B, one in zip(together, alone, strict=True):
            torch.testing.assert_close(all_B[:1], one, rtol=1e-3, atol=1e-4)

    def test_state_dict_round_trips(self) -> None:
        """A new backbone that loads the state dict must return the same features, bit for bit."""
        used, images = self._backbone(), self._images()
        self._features(used.train(), images)  # this moves the statistics of batch norms
        torch.manual_seed(7)
        fresh = self.make_backbone(self.in_channels)
        fresh.load_state_dict(copy.deepcopy(used.state_dict()))
        with torch.no_grad():
            before, after = (
                self._features(used.eval(), images),
                self._features(fresh.eval(), images),
            )
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), (
            "loaded features differ"
        )

    def _backbone(self) -> Any:
        torch.manual_seed(0)
        return self.make_backbone(self.in_channels)

    def _images(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(
            3, self.in_channels, self.image_size, self.image_size, generator=generator
        )

    @staticmethod
    def _features(backbone: Any, images: Tensor) -> tuple[Tensor, ...]:
        features = backbone(images)
        return features if isinstance(features, tuple) else (features,)

    @staticmethod
    def _widths(backbone: Any) -> tuple[int, ...]:
        widths = backbone.num_features
        return widths if isinstance(widths, tuple) else (widths,)

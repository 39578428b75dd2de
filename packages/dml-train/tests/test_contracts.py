"""The data sets, backbones and loggers of this package keep their contracts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dml_core.testing import BackboneContract, DatasetContract, LoggerContract
from dml_train.data.factories import image_folder
from dml_train.data.glyphs import Glyphs
from dml_train.networks.backbones import SmallConv, TorchvisionModel
from dml_train.training.loggers import JsonLines, TensorBoard


class TestGlyphs(DatasetContract):
    def make_dataset(self):
        return Glyphs(max_classes=8)


class TestImageFolder(DatasetContract):
    @pytest.fixture(autouse=True)
    def _photos(self, tmp_path: Path) -> None:
        self.root = tmp_path
        for number in range(16):
            folder = tmp_path / f"class {number % 4}"
            folder.mkdir(exist_ok=True)
            pixels = np.random.default_rng(number).integers(0, 256, (30, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")

    def make_dataset(self):
        return image_folder(str(self.root), resize=24, crop=16)


class TestSmallConv(BackboneContract):
    def make_backbone(self, in_channels):
        return SmallConv(in_channels, widths=(8, 16))


class TestSmallConvOfTwoLevels(BackboneContract):
    def make_backbone(self, in_channels):
        return SmallConv(in_channels, widths=(8, 16), levels=("block1", "block2"))


class TestSqueezeNet(BackboneContract):
    def make_backbone(self, in_channels):
        return TorchvisionModel(in_channels, model="squeezenet1_1")


class TestJsonLines(LoggerContract):
    def make_logger(self, directory, start_step):
        return JsonLines(directory, start_step)


class TestTensorBoard(LoggerContract):
    def make_logger(self, directory, start_step):
        return TensorBoard(directory, start_step)

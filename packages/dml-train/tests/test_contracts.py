"""The data sets, backbones and loggers of this package satisfy the contracts of
dml_core.testing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from train_support.photo_world import write_photos

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
        self.root = write_photos(tmp_path, classes=4, each=4)

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

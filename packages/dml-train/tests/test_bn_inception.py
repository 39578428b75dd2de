"""BN-Inception, compared with the published table and with a second implementation that only uses
published names.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from dml_core import DmlError, InvalidOption
from dml_train.networks.backbones import BNInception


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return BNInception(3)


def published_layout() -> dict[str, torch.Tensor]:
    """Draw weights with the names and shapes of bn_inception-52deb4733.pth.

    A convolution has weight and bias; the tensors of a batch norm have the shape (1, C), without a
    count of batches. See Ioffe & Szegedy's figure 5 for the widths: input, 1x1, 3x3 reduce, 3x3,
    double reduce, double, projection.
    """
    table = {
        "3a": (192, 64, 64, 64, 64, 96, 32),
        "3b": (256, 64, 64, 96, 64, 96, 64),
        "3c": (320, 0, 128, 160, 64, 96, 0),
        "4a": (576, 224, 64, 96, 96, 128, 128),
        "4b": (576, 192, 96, 128, 96, 128, 128),
        "4c": (576, 160, 128, 160, 128, 160, 128),
        "4d": (608, 96, 128, 192, 160, 192, 128),
        "4e": (608, 0, 128, 192, 192, 256, 0),
        "5a": (1056, 352, 192, 320, 160, 224, 128),
        "5b": (1024, 352, 192, 320, 192, 224, 128),
    }
    convolutions = {
        "conv1_7x7_s2": (64, 3, 7),
        "conv2_3x3_reduce": (64, 64, 1),
        "conv2_3x3": (192, 64, 3),
    }
    for name, (given, one, reduce, three, double_reduce, double, projection) in table.items():
        block = {
            "1x1": (one, given, 1),
            "3x3_reduce": (reduce, given, 1),
            "3x3": (three, reduce, 3),
            "double_3x3_reduce": (double_reduce, given, 1),
            "double_3x3_1": (double, double_reduce, 3),
            "double_3x3_2": (double, double, 3),
            "pool_proj": (projection, given, 1),
        }
        convolutions |= {
            f"inception_{name}_{unit}": sizes for unit, sizes in block.items() if sizes[0]
        }
    random = torch.Generator().manual_seed(1)
    state = {}
    for name, (width, given, size) in convolutions.items():
        deviation = (2.0 / (given * size * size)) ** 0.5
        state[f"{name}.weight"] = deviation * torch.randn(
            width, given, size, size, generator=random
        )
        state[f"{name}.bias"] = 0.1 * torch.randn(width, generator=random)
        for number, middle in {
            "weight": 1.0,
            "bias": 0.0,
            "running_mean": 0.0,
            "running_var": 1.0,
        }.items():
            state[f"{name}_bn.{number}"] = middle + 0.1 * torch.rand(1, width, generator=random)
    state["last_linear.weight"] = torch.randn(1000, 1024, generator=random)
    state["last_linear.bias"] = torch.randn(1000, generator=random)
    return state


def reference(state: dict[str, torch.Tensor], images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Compute the outputs of all blocks in evaluation, using only the published names."""

    def unit(x, name, stride=1):
        weight = state[f"{name}.weight"]
        x = functional.conv2d(
            x, weight, state[f"{name}.bias"], stride=stride, padding=weight.shape[-1] // 2
        )
        mean, var, scale, shift = (
            state[f"{name}_bn.{number}"].flatten()[:, None, None]
            for number in ("running_mean", "running_var", "weight", "bias")
        )
        return ((x - mean) / (var + 1e-5).sqrt() * scale + shift).clamp(min=0)

    x = functional.max_pool2d(unit(images, "conv1_7x7_s2", 2), 3, 2, ceil_mode=True)
    x = unit(unit(x, "conv2_3x3_reduce"), "conv2_3x3")
    x = functional.max_pool2d(x, 3, 2, ceil_mode=True)
    outputs = {}
    for block in ("3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        name = f"inception_{block}"
        halves = block in ("3c", "4e")
        stride = 2 if halves else 1
        branches = [] if halves else [unit(x, f"{name}_1x1")]
        branches.append(unit(unit(x, f"{name}_3x3_reduce"), f"{name}_3x3", stride))
        double = unit(unit(x, f"{name}_double_3x3_reduce"), f"{name}_double_3x3_1")
        branches.append(unit(double, f"{name}_double_3x3_2", stride))
        if halves:
            branches.append(functional.max_pool2d(x, 3, 2, ceil_mode=True))
        elif block == "5b":
            branches.append(unit(functional.max_pool2d(x, 3, 1, 1), f"{name}_pool_proj"))
        else:
            branches.append(unit(functional.avg_pool2d(x, 3, 1, 1), f"{name}_pool_proj"))
        x = outputs[name] = torch.cat(branches, dim=1)
    return outputs


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Write a file in the published layout; return it with the tensors that it contains."""
    state = published_layout()
    file = tmp_path_factory.mktemp("weights") / "bn_inception.pth"
    torch.save(state, file)
    return file, state


def test_it_has_as_many_weights_as_the_published_network_and_takes_images_of_any_size(network):
    # 11,295,240 with the classifier of 1,000 ImageNet classes over 1,024 features.
    assert sum(p.numel() for p in network.parameters()) == 11_295_240 - 1_000 * 1_025
    assert network.num_features == 1_024
    for size, expected in ((64, (2, 2)), (72, (3, 3)), (100, (3, 3))):
        with torch.no_grad():
            assert network.eval()(torch.rand(1, 3, size, size)).shape == (1, 1_024, *expected)


def test_published_weights_give_the_outputs_of_an_independent_program(published):
    file, state = published
    images = 100 * torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    expected = reference(state, images)
    levels = [*expected]
    backbone = BNInception(3, str(file), levels).eval()
    with torch.no_grad():
        found = backbone(images)
    assert backbone.num_features == tuple(maps.shape[1] for maps in expected.values())
    for level, maps in zip(levels, found, strict=True):
        # The reference normalises in a different order, in float32.
        torch.testing.assert_close(maps, expected[level], rtol=1e-3, atol=1e-2, msg=level)


@pytest.mark.parametrize(
    ("name", "tensor", "fault"),
    [
        ("inception_4a_3x3_bn.weight", None, 'Missing .*"blocks.inception_4a.3x3.norm.weight"'),
        (
            "inception_4a_3x3.weight",
            torch.zeros(3, 3, 3, 3),
            r"blocks.inception_4a.3x3.conv.weight: .*3, 3, 3, 3\]",
        ),
        ("inception_6a_3x3.weight", torch.zeros(1), r'Unexpected .*"inception_6a_3x3\.weight"'),
    ],
)
def test_a_missing_misshapen_or_unknown_weight_is_refused(published, tmp_path, name, tensor, fault):
    state = {**published[1], name: tensor}
    torch.save({k: v for k, v in state.items() if v is not None}, tmp_path / "w.pth")
    with pytest.raises(DmlError, match=rf"don't fit BNInception.*{fault}.*52deb4733"):
        BNInception(3, str(tmp_path / "w.pth"))


def test_invalid_options_are_refused():
    with pytest.raises(
        InvalidOption, match="'inception_5c'; bn-inception has no such level; did you mean"
    ):
        BNInception(3, levels=["inception_5c"])
    with pytest.raises(
        InvalidOption, match=r"'bn.pth', but the file doesn't exist.*docs/guide/models.md"
    ):
        BNInception(3, "bn.pth")

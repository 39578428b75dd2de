"""The settings in a paper's recipe must be those given in the paper and in the authors' code.

The pages in docs/reference/papers say where settings were read, and why some differ. Schedules are
given by path; ``None`` is a key that a recipe should not have. Rates are products: ``optimizer.lr``
times the part's multiplier.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

import pytest

from dml_core import registry
from dml_train.recipe.bundled import bundled_recipes
from dml_train.recipe.loading import load_recipe

Settings = dict[str, Any]

SYSTEMS = ("ice", "rll", "norm-softmax", "heated-up", "memvir")
RECIPES = [
    name for name in bundled_recipes() if name.split("/")[0] in SYSTEMS and "/glyphs" not in name
]
LEVELS = ["inception_3c", "inception_4e", "inception_5b"]
T_N = "schedule.loss.negative_temperature"


def under(table: str, **settings: Any) -> Settings:
    """Return settings by dotted keys."""
    return {f"{table}.{key}": value for key, value in settings.items()}


def rates(backbone: float, head: float, loss: float) -> Settings:
    return under("rate", backbone=backbone, head=head, loss=loss)


def images(
    resize: int, square: bool, crop: int, train_crop: str, normalize: str, min_area: float = 0.16
) -> Settings:
    """Return the preparation of images; `min_area` only matters if `train_crop` is
    ``"resized"``.
    """
    own = under(
        "dataset",
        resize=resize,
        square=square,
        crop=crop,
        train_crop=train_crop,
        normalize=normalize,
    )
    return own | under(
        "dataset",
        interpolation="bilinear",
        min_area=min_area,
        flip=0.5,
        augment=[],
        max_pixels=64_000_000,
    )


def head(dim: int, *, bias: bool, **options: bool) -> Settings:
    default = {"layer_norm": False, "linear": True, "batch_norm": False, "pooling": "average"}
    return under("embedding", **default | options, dim=dim, bias=bias)


def sampler(classes: int, each: int) -> Settings:
    return under("sampler", name="class-balanced", classes_per_batch=classes, images_per_class=each)


def shuffled(size: int) -> Settings:
    return under("sampler", name="shuffled", batch_size=size)


def length(*, steps: int | None = None, epochs: float | None = None) -> Settings:
    return under("training", steps=steps, epochs=epochs)


def steps_of(
    path: str, values: list[float] | None, milestones: list[float] | None, unit: str
) -> Settings:
    """Return the settings of a schedule in steps; None if there is no schedule."""
    if values is None:
        return {f"schedule.{path}": None}
    unit_given = unit if unit != "step" else None  # the default
    return under(
        f"schedule.{path}", kind="step", values=values, milestones=milestones, unit=unit_given
    )


def sgd(momentum: float, weight_decay: float, *, nesterov: bool = False) -> Settings:
    return under(
        "optimizer", name="sgd", momentum=momentum, weight_decay=weight_decay, nesterov=nesterov
    )


def adam(eps: float, weight_decay: float) -> Settings:
    """Return the settings of Adam with an L2 term."""
    return under("optimizer", name="adam", eps=eps, weight_decay=weight_decay, betas=[0.9, 0.999])


def initialisation(class_weights: str = "default", adapt_batch_norm: float = 0.0) -> Settings:
    return under("initialisation", class_weights=class_weights, adapt_batch_norm=adapt_batch_norm)


def network(**options: str | int | None) -> Settings:
    """Return the settings of a backbone when batch norms are trained."""
    return under("backbone", **options) | {"training.freeze_batch_norm": False}


BN_INCEPTION = network(
    name="bn-inception",
    model=None,
    weights="weights/bn_inception-52deb4733.pth",
    last_stride=None,
)


def torchvision(model: str) -> Settings:
    return network(name="torchvision", model=model, weights="IMAGENET1K_V1", last_stride=2)


# Patterns of recipes → settings; if multiple patterns match, the last will be used.
EXPECTED: list[tuple[str, Settings]] = [
    # For all papers, the last weights of a single seed are measured here, on all levels.
    ("*", {"validation.on_test": False, "embedding.levels": [], "backbone.levels": []}),
    ("*", initialisation() | {"embedding.level_weight": 1.0}),
    # Instance Cross Entropy, section 4.1; no code. Bias is not used: see the authors' code of
    # Ranked List Loss.
    ("ice/*", BN_INCEPTION | images(256, True, 227, "random", "caffe") | head(512, bias=False)),
    ("ice/*",
     sgd(0.8, 1e-5) | rates(1e-3, 1e-2, 1e-3) | steps_of("optimizer.lr", None, None, "step")),
    ("ice/*", {"loss.name": "instance-cross-entropy", "loss.scale": 64.0}),
    ("ice/*", length(steps=4000) | sampler(6, 10)),
    ("ice/*sop", length(steps=20000) | sampler(90, 2)),
    ("ice/lmh-*", {"backbone.levels": LEVELS}),
    # Ranked List Loss, section 4.1; SOP_Simp_25042020/150_T10_pn04_v50/solver.prototxt,
    # process_ori_image_aug_v04.m.
    ("rll/*",
     BN_INCEPTION | images(256, True, 224, "resized", "caffe", 0.25) | head(512, bias=False)),
    ("rll/*", sgd(0.9, 2e-5) | rates(1e-2, 1e-1, 1e-2) | length(steps=30000) | sampler(60, 3)),
    ("rll/*", steps_of("optimizer.lr", [1e-2, 2e-3, 4e-4], [12000, 22000], "step")),
    ("rll/*",
     {"loss.name": "ranked-list", "loss.margin": 0.4, "loss.alpha": 1.2, "loss.balance": 0.5}),
    ("rll/*", {"loss.negative_temperature": 10.0, "loss.positive_temperature": 0.0}),
    ("rll/*", {"loss.query_weights": "equal"}),
    # Section 4.3: a network with three losses; H is the last level.
    ("rll/*", {"backbone.levels": LEVELS, "embedding.levels": ["inception_5b"]}),
    ("rll/lmh-*", {"embedding.levels": []}),
    ("rll/ablation-sop", {"embedding.levels": []}),
    # InshopClothes_Simp_21042020/60_T10_pn04_v63/solver.prototxt.
    ("rll/*in-shop", head(128, bias=False) | sampler(22, 3) | {"loss.negative_temperature": 12.0}),
    ("rll/*in-shop", steps_of("optimizer.lr", [1e-2, 2e-3, 4e-4], [12000, 24000], "step")),
    # Section 4.1.3, and CUB_V01/60_n1.4_pn0.2_tp0_tn10/solver.prototxt with lr_mult 100.
    *(
        (
            name,
            {"training.freeze_batch_norm": True, "loss.margin": 0.2, "loss.alpha": 1.1}
            | head(64, bias=False)
            | sampler(22, 3)
            | rates(1e-3, 1e-1, 1e-3)
            | length(steps=10000)
            | steps_of(
                "optimizer.lr", [1e-3, 5e-4, 2.5e-4, 1.25e-4, 6.25e-5], [2000, 4000, 6000, 8000],
                "step"
            ),
        )
        for name in ("rll/*cub", "rll/*cars196")
    ),
    *(
        (
            name,
            head(512, bias=False)
            | sampler(20, 3)
            | {"loss.alpha": 1.4}
            | images(256, True, 224, "random", "caffe"),
        )
        for name in ("rll/lmh-cub", "rll/lmh-cars196")
    ),
    # Tables 8 to 14, section 4.1.6; Table 15, section 5; Table 5, section 4.1.3.
    ("rll/ablation-sop", images(256, True, 224, "random", "caffe")),
    ("rll/dynamic-*", images(256, True, 224, "random", "caffe") | sampler(20, 3)),
    ("rll/dynamic-*", {"loss.negative_temperature": 12.0}),
    # Eq. 15.
    ("rll/dynamic-*", {f"{T_N}.kind": "linear", f"{T_N}.start": 12.0, f"{T_N}.end": 12.0}),
    ("rll/resnet50-sop", torchvision("resnet50") | head(128, bias=False)),
    ("rll/resnet50-sop", images(256, True, 224, "resized", "imagenet", 0.25)),
    ("rll/resnet50-sop", {"backbone.levels": [], "embedding.levels": []}),
    # NormSoftmax, section 6.1; metric_learning/modules/featurizer.py and train_classification.py.
    ("norm-softmax/*", torchvision("resnet50") | images(256, True, 224, "random", "imagenet")),
    ("norm-softmax/*",
     head(512, bias=False, layer_norm=True) | sgd(0.9, 1e-4) | length(epochs=31.0)),
    ("norm-softmax/*", {"loss.name": "norm-softmax", "loss.temperature": 0.05}),
    ("norm-softmax/*", rates(1e-3, 1e-3, 1e-3) | sampler(3, 25)),
    ("norm-softmax/*", steps_of("optimizer.lr", [1e-3, 1e-4], [16], "epoch")),
    # In the first epoch, only new parameters train: the backbone's rate is 0, but its batch norms
    # use the batch.
    ("norm-softmax/*", steps_of("optimizer.lr_multipliers.backbone", [0.0, 1.0], [1], "epoch")),
    ("norm-softmax/*", {"schedule.model.backbone_trains": None}),
    *(
        (name, rates(1e-2, 1e-2, 1e-2) | steps_of("optimizer.lr", [1e-2, 1e-3], [16], "epoch"))
        for name in ("norm-softmax/*cars196", "norm-softmax/*sop", "norm-softmax/*in-shop")
    ),
    ("norm-softmax/*sop", sampler(15, 5)),
    ("norm-softmax/*in-shop", sampler(15, 5)),
    ("norm-softmax/2048-*", head(2048, bias=False, layer_norm=True, linear=False)),
    ("norm-softmax/bn-inception-*", BN_INCEPTION | images(256, True, 224, "random", "caffe")),
    ("norm-softmax/bn-inception-in-shop", head(1024, bias=False, layer_norm=True, linear=False)),
    ("norm-softmax/googlenet-*",
     torchvision("googlenet") | images(256, True, 227, "random", "imagenet")),
    ("norm-softmax/googlenet-*", rates(1e-3, 1e-3, 1e-3)),
    ("norm-softmax/googlenet-*", steps_of("optimizer.lr", [1e-3, 1e-4], [16], "epoch")),
    # Section 6.2: on SOP all parameters train from the start.
    ("norm-softmax/googlenet-sop", rates(1e-3, 1e-2, 1e-2) | length(epochs=30.0)),
    ("norm-softmax/googlenet-sop", steps_of("optimizer.lr", [1e-3, 1e-4], [15], "epoch")),
    ("norm-softmax/googlenet-sop", {"schedule.optimizer.lr_multipliers.backbone": None}),
    # Heated-Up Softmax, section 4.1; run_Inception.py and deep_metric_learning_Inception.py.
    ("heated-up/*", torchvision("googlenet") | images(256, True, 224, "random", "imagenet")),
    ("heated-up/*", head(64, bias=True) | sgd(0.9, 0.0) | length(epochs=80.0) | shuffled(32)),
    ("heated-up/*",
     {"loss.name": "heated-up-softmax", "loss.alpha": 16.0, "loss.feature_norm": "l2"}),
    ("heated-up/*", rates(4e-3, 4e-3, 4e-3) | initialisation(adapt_batch_norm=1.0)),
    ("heated-up/*", steps_of("optimizer.lr", [4e-3, 4e-4], [61], "epoch")),
    ("heated-up/*", steps_of("loss.alpha", [16.0, 4.0], [61], "epoch")),
    ("heated-up/bn-*", head(64, bias=False, batch_norm=True) | {"loss.feature_norm": "batch"}),
    ("heated-up/*sop", adam(0.01, 0.0) | rates(1e-2, 1e-2, 1e-2)),
    ("heated-up/*sop", steps_of("optimizer.lr", [1e-2, 1e-3], [61], "epoch")),
    ("heated-up/*sop", initialisation("class-means", adapt_batch_norm=1.0)),
    # MemVir, section 4.1; main.py, loss/softmax_variants.py and the README's commands.
    ("memvir/*", BN_INCEPTION | {"training.freeze_batch_norm": True} | head(512, bias=True)),
    ("memvir/*", images(256, False, 224, "resized", "caffe", 0.08) | shuffled(128)),
    ("memvir/*", adam(0.01, 1e-4) | rates(1e-4, 1e-4, 1e-2) | initialisation("uniform-by-classes")),
    ("memvir/*", length(epochs=2000.0) | steps_of("optimizer.lr", None, None, "epoch")),
    ("memvir/*", {"loss.name": "memvir", "loss.num_steps": 45, "loss.margin": 10}),
    ("memvir/*", {"loss.warmup_epochs": 50, "loss.warmup_steps": 0, "loss.step_pacing": True}),
    ("memvir/*sop", length(epochs=200.0) | {"loss.num_steps": 1, "loss.margin": 100}),
    ("memvir/norm-softmax-*",
     {"loss.loss.name": "norm-softmax", "loss.loss.temperature": 0.043478}),
    ("memvir/proxy-nca-*", {"loss.loss.name": "proxy-nca", "loss.loss.scale": 12.0}),
    ("memvir/proxy-nca-*", {"loss.loss.positive_in_denominator": True} | initialisation("default")),
    ("memvir/proxy-nca-c*", {"loss.num_steps": 20, "loss.margin": 25}),
    ("memvir/baseline-*", length(epochs=130.0)),
    ("memvir/baseline-*", steps_of("optimizer.lr", [1e-4, 1e-5], [49], "epoch")),
    ("memvir/baseline-*",
     {"loss.name": "norm-softmax", "loss.temperature": 0.043478, "loss.num_steps": None}),
    ("memvir/baseline-*",
     {"loss.margin": None, "loss.warmup_epochs": None, "loss.warmup_steps": None}),
    ("memvir/baseline-*", {"loss.step_pacing": None}),
    # Section 4.5; Nesterov: main.py.
    ("memvir/resnet50-*",
     torchvision("resnet50") | {"training.freeze_batch_norm": True} | shuffled(512)),
    ("memvir/resnet50-*", images(256, False, 224, "resized", "imagenet", 0.08)),
    ("memvir/resnet50-*", sgd(0.9, 1e-4, nesterov=True) | rates(5e-3, 5e-3, 5e-3)),
    ("memvir/resnet50-*", {"optimizer.eps": 1e-8} | length(epochs=200.0)),
    ("memvir/resnet50-*", {"loss.num_steps": 1, "loss.margin": 100}),
]  # fmt: skip


def expected_settings(name: str) -> Settings:
    expected: Settings = {}
    for pattern, settings in EXPECTED:
        if fnmatch(name, pattern):
            # If a later pattern removes or replaces a schedule, drop earlier keys of this schedule.
            for key in settings:
                if key.startswith("schedule."):
                    expected = {
                        old: value
                        for old, value in expected.items()
                        if not old.startswith(f"{key}.") and not key.startswith(f"{old}.")
                    }
            expected |= settings
    return expected


def actual_settings(name: str) -> Settings:
    """Flatten a recipe to dotted keys; the rates of all parts are added."""
    document = load_recipe(name, [], registry()).to_dict()
    flat: Settings = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{path}.{key}" if path else key)
        flat[path] = value

    walk(document, "")
    lr = document["optimizer"]["lr"]
    multipliers = document["optimizer"]["lr_multipliers"]
    return flat | {f"rate.{part}": lr * multiplier for part, multiplier in multipliers.items()}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_settings_of_its_paper_and_code(name):
    expected, actual = expected_settings(name), actual_settings(name)
    found = {path: actual.get(path) for path in expected}
    assert found == {
        path: pytest.approx(value, rel=1e-12) if path.startswith("rate.") else value
        for path, value in expected.items()
    }


@pytest.mark.parametrize("name", RECIPES)
def test_no_setting_of_a_recipe_is_unexamined(name):
    """Every key that affects results must have an expected value, so that the test notices a new
    default.
    """
    expected = expected_settings(name)
    # These keys select the data set and the handling of broken images.
    free = {"dataset.name", "dataset.root", "dataset.on_bad_image"}
    tables = ("dataset", "backbone", "embedding", "sampler", "initialisation", "schedule")
    unexamined = {
        path
        for path, value in actual_settings(name).items()
        if path.partition(".")[0] in tables
        and "." in path
        and not isinstance(value, dict)
        and path not in expected.keys() | free
    }
    assert not unexamined
    assert {f"rate.{part}" for part in ("backbone", "head", "loss")} <= expected.keys()

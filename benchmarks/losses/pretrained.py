"""The studies of `bench_claims.py --data units`: the papers' settings from features learned on ImageNet.

EfficientNet-Lite0 with ImageNet's weights trains on 107 unit types of a game for eight epochs, as CUB-200-2011 is used:
few fine-grained classes, a learned network. docs/guide/pictures.md says what the pictures are and how to build them;
the studies read them from pictures/units below the working directory. A fifth of the training classes is held out and
chooses each study's learning rate.
"""

from __future__ import annotations

from claims import Study, every_level, falling
from class_intervals import intervals_by_class

from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder

RECIPE = "pretrained/units"
COMMON = ["validation.class_fraction=0.2", "checkpoints.every=0"]
RATES = ("1e-4", "3e-4", "1e-3")
# Of losses of pairs, which have no class weights and so no rate of their own.
PAIRS = [
    "optimizer.lr_multipliers={head=3.0}",
    "sampler={name='class-balanced', classes_per_batch=10, images_per_class=6}",
]
RANKED_LIST = [*PAIRS, "loss={name='ranked-list', alpha=1.2, negative_temperature=10.0}"]
LEVELS = 'backbone.levels=["blocks.2", "blocks.4", "blocks.6"]'  # depths of 40, 112 and 320 channels


def cosine(rate: str) -> str:
    """The recipe's schedule with another rate."""
    return f'schedule."optimizer.lr"={{kind="cosine", start={rate}, end=0.0, warmup=30}}'


def heated(rate: str) -> str:
    """A rate that falls to a tenth after 70 % of the run, as Heated-Up Softmax's."""
    return f'schedule."optimizer.lr"={falling(rate, float(rate) / 10)}'


def alpha(first: float, last: float) -> list[str]:
    """Alpha for 70 % of the run, and after."""
    return [f'schedule."loss.alpha"={falling(first, last)}']


def levels_and_intervals(folder: RunFolder, recipe: Recipe) -> dict[str, float]:
    """Measure each set of levels, too, where the run has several."""
    levels = every_level(folder, recipe) if len(recipe.backbone["levels"]) > 1 else {}
    return intervals_by_class(folder, recipe) | levels


STUDIES = {
    "pretrained-ice-scale": Study(
        "Instance Cross Entropy's scale, from pretrained features",
        "s = 64 is best, 16 and 80 are worse (Table 2)",
        RECIPE,
        [*COMMON, *PAIRS],
        {
            f"s = {scale}": [f"loss={{name='instance-cross-entropy', scale={scale}.0}}"]
            for scale in (16, 32, 64, 80)
        },
        rates=[cosine(rate) for rate in RATES],
        rate_of="s = 64",
        after=intervals_by_class,
    ),
    "pretrained-rll-margin": Study(
        "Ranked List Loss's margin, from pretrained features",
        "m = 0.4 is best, 0 and 1.2 are worse (Table 11)",
        RECIPE,
        [*COMMON, *RANKED_LIST],
        {f"m = {margin}": [f"loss.margin={margin}"] for margin in (0.0, 0.4, 1.2)},
        rates=[cosine(rate) for rate in RATES],
        rate_of="m = 0.4",
        after=intervals_by_class,
    ),
    "pretrained-rll-levels": Study(
        "Ranked List Loss on three depths of a pretrained network, 128 numbers each",
        "levels joined are above each alone (Tables 6 and 7)",
        RECIPE,
        [*COMMON, *RANKED_LIST, "loss.margin=0.4", "embedding.dim=128"],
        {"L, M and H": [LEVELS], "H": ['backbone.levels=["blocks.6"]']},
        rates=[cosine(rate) for rate in RATES],
        rate_of="H",
        after=levels_and_intervals,
    ),
    "pretrained-memvir": Study(
        "MemVir with NormSoftmax, from pretrained features, by temperature",
        "MemVir lifts NormSoftmax (Tables 1 and 4)",
        RECIPE,
        COMMON,
        {
            f"{label}, T = {temperature}": [
                f"loss={{name='memvir', num_steps={count}, margin={margin}, warmup_steps=80, "
                f"loss={{name='norm-softmax', temperature={temperature}}}}}"
            ]
            for temperature in (0.05, 0.1)
            for label, (count, margin) in {"base": (0, 0), "MemVir (2, 20)": (2, 20)}.items()
        },
        rates=[cosine(rate) for rate in RATES],
        rate_of="base, T = 0.1",
        after=intervals_by_class,
    ),
    "pretrained-heating": Study(
        "Heated-Up Softmax from pretrained features: the last 30 % of the run",
        "alpha falls from 16 to 4 with a tenth of the rate: better than alpha = 16 (Tables 1-5)",
        RECIPE,
        [*COMMON, "loss={name='heated-up-softmax', alpha=16.0, feature_norm='l2'}"],
        {
            "alpha 16, then 4": alpha(16.0, 4.0),
            "alpha 16": alpha(16.0, 16.0),
            "alpha 4": alpha(4.0, 4.0),
        },
        rates=[heated(rate) for rate in RATES],
        rate_of="alpha 16",
        after=intervals_by_class,
    ),
    "pretrained-sup-con": Study(
        "SupCon of pytorch-metric-learning, from pretrained features, by temperature",
        "a strong baseline of today",
        RECIPE,
        [*COMMON, *PAIRS],
        {
            f"T = {temperature}": [f"loss={{name='pml/SupConLoss', temperature={temperature}}}"]
            for temperature in (0.05, 0.1)
        },
        rates=[cosine(rate) for rate in RATES],
        rate_of="T = 0.1",
        after=intervals_by_class,
    ),
    "pretrained-proxy-anchor": Study(
        "Proxy-Anchor, from pretrained features",
        "a strong baseline of today",
        RECIPE,
        [*COMMON, "loss={name='proxy-anchor'}"],
        {"alpha = 32": ["loss.scale=32.0"]},
        rates=[cosine(rate) for rate in RATES],
        rate_of="alpha = 32",
        after=intervals_by_class,
    ),
}

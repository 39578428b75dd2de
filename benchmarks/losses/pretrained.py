"""Studies for `bench_claims.py --data units`: the papers' settings, from features learned on
ImageNet.

EfficientNet-Lite0 with ImageNet's weights trains for eight epochs on 107 unit types of a game. This
resembles the use of CUB-200-2011: few fine-grained classes and a pretrained network. See
docs/guide/pictures.md for the pictures and how to build the set; the studies read pictures/units
below the working directory. A fifth of the training classes is held out to choose a study's
learning rate.
"""

from __future__ import annotations

from collections.abc import Callable

from claims import Study, cosine, every_level, falling
from class_intervals import intervals_by_class

from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder

COMMON = ["validation.class_fraction=0.2", "checkpoints.every=0"]
RATES = ("1e-4", "3e-4", "1e-3")
COSINES = [cosine(rate, warmup=30) for rate in RATES]
# Losses of pairs do not use class weights, so a learning rate for class weights is not given.
PAIRS = [
    "optimizer.lr_multipliers={head=3.0}",
    "sampler={name='class-balanced', classes_per_batch=10, images_per_class=6}",
]
RANKED_LIST = [*PAIRS, "loss={name='ranked-list', alpha=1.2, negative_temperature=10.0}"]
LEVELS = (
    'backbone.levels=["blocks.2", "blocks.4", "blocks.6"]'  # depths of 40, 112 and 320 channels
)


def alpha(first: float, last: float) -> list[str]:
    """Set alpha to `first` for 70 % of the run, then to `last`."""
    return [f'schedule."loss.alpha"={falling(first, last)}']


def levels_and_intervals(folder: RunFolder, recipe: Recipe) -> dict[str, float]:
    """Also measure sets of levels, if multiple levels are used in the run."""
    levels = every_level(folder, recipe) if len(recipe.backbone["levels"]) > 1 else {}
    return intervals_by_class(folder, recipe) | levels


def study(
    title: str,
    claim: str,
    changes: list[str],
    variants: dict[str, list[str]],
    rate_of: str,
    rates: list[str] = COSINES,
    after: Callable[[RunFolder, Recipe], dict[str, float]] = intervals_by_class,
) -> Study:
    """Make a study of the recipe `pretrained/units`."""
    return Study(
        title, claim, "pretrained/units", [*COMMON, *changes], variants, rates, rate_of, after
    )


STUDIES = {
    "pretrained-ice-scale": study(
        "Instance Cross Entropy's scale, from pretrained features",
        "s = 64 is best, 16 and 80 are worse (Table 2)",
        PAIRS,
        {
            f"s = {scale}": [f"loss={{name='instance-cross-entropy', scale={scale}.0}}"]
            for scale in (16, 32, 64, 80)
        },
        rate_of="s = 64",
    ),
    "pretrained-rll-margin": study(
        "Ranked List Loss's margin, from pretrained features",
        "m = 0.4 is best, 0 and 1.2 are worse (Table 11)",
        RANKED_LIST,
        {f"m = {margin}": [f"loss.margin={margin}"] for margin in (0.0, 0.4, 1.2)},
        rate_of="m = 0.4",
    ),
    "pretrained-rll-levels": study(
        "Ranked List Loss on three depths of a pretrained network, 128 numbers each",
        "levels joined are above each alone (Tables 6 and 7)",
        [*RANKED_LIST, "loss.margin=0.4", "embedding.dim=128"],
        {"L, M and H": [LEVELS], "H": ['backbone.levels=["blocks.6"]']},
        rate_of="H",
        after=levels_and_intervals,
    ),
    "pretrained-memvir": study(
        "MemVir with NormSoftmax, from pretrained features, by temperature",
        "MemVir lifts NormSoftmax (Tables 1 and 4)",
        [],
        {
            f"{label}, T = {temperature}": [
                f"loss={{name='memvir', num_steps={count}, margin={margin}, warmup_steps=80, "
                f"loss={{name='norm-softmax', temperature={temperature}}}}}"
            ]
            for temperature in (0.05, 0.1)
            for label, (count, margin) in {"base": (0, 0), "MemVir (2, 20)": (2, 20)}.items()
        },
        rate_of="base, T = 0.1",
    ),
    "pretrained-heating": study(
        "Heated-Up Softmax from pretrained features: the last 30 % of the run",
        "alpha falls from 16 to 4 with a tenth of the rate: better than alpha = 16 (Tables 1-5)",
        ["loss={name='heated-up-softmax', alpha=16.0, feature_norm='l2'}"],
        {
            "alpha 16, then 4": alpha(16.0, 4.0),
            "alpha 16": alpha(16.0, 16.0),
            "alpha 4": alpha(4.0, 4.0),
        },
        rate_of="alpha 16",
        rates=[f'schedule."optimizer.lr"={falling(rate, float(rate) / 10)}' for rate in RATES],
    ),
    "pretrained-sup-con": study(
        "SupCon of pytorch-metric-learning, from pretrained features, by temperature",
        "a strong baseline of today",
        PAIRS,
        {
            f"T = {temperature}": [f"loss={{name='pml/SupConLoss', temperature={temperature}}}"]
            for temperature in (0.05, 0.1)
        },
        rate_of="T = 0.1",
    ),
    "pretrained-proxy-anchor": study(
        "Proxy-Anchor, from pretrained features",
        "a strong baseline of today",
        ["loss={name='proxy-anchor'}"],
        {"alpha = 32": ["loss.scale=32.0"]},
        rate_of="alpha = 32",
    ),
    "pretrained-augmentation": study(
        "Augmentation, two views, and softmax + triplet, from pretrained features",
        "RandAugment, erasing, two views and a triplet term each lift a plain training",
        ["training.workers=1"],
        {
            "plain": [],
            "RandAugment": ["dataset.augment=['RandAugment']"],
            "erasing": ["dataset.augment=[{name='RandomErasing', p=0.5}]"],
            "two views, sup-con": [
                "optimizer.lr_multipliers={head=3.0}",
                "sampler={name='class-balanced', classes_per_batch=10, images_per_class=3}",
                "training.views=2",
                "training.epochs=4",  # as many images as eight epochs of single views
                "loss={name='sup-con', temperature=0.1}",
            ],
            "softmax + triplet": [
                "sampler={name='class-balanced', classes_per_batch=8, images_per_class=4}",
                "loss={name='sum', terms={softmax={name='norm-softmax', temperature=0.1}, "
                "triplet={name='triplet', margin=0.3}}}",
            ],
        },
        rate_of="plain",
        # The rate that the search chose for NormSoftmax and SupCon.
        rates=[cosine("3e-4", warmup=30)],
    ),
}

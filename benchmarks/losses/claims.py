"""Studies for `bench_claims.py`: the papers' claims, and the runs on glyphs that test a claim.

A study trains a bundled recipe with some keys changed. A share of the training classes is held out
to choose the learning rate, once per study. The classes of the test half are only measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from dml_core import registry
from dml_train.measure.evaluate import Embedded, build_evaluator, evaluate, select_levels
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint

NO_AUGMENTATION = [
    f"dataset.{name}=0.0"
    for name in ("rotation", "scale", "stretch", "shear", "shift", "stroke", "fade")
]


@dataclasses.dataclass(frozen=True)
class Study:
    """A claim and the runs that test it.

    Attributes:
        title: the table's heading.
        claim: the paper's statement.
        recipe: the bundled recipe.
        set: changes for all runs.
        variants: changes per variant, by label.
        rates: learning rates to choose from, with `rate_of`, on held-out classes; if a choice sets
            multiple keys, they are joined by `` ; ``. If empty, the recipe's rate is used.
        rate_of: the label of the variant that chooses the rate for all variants.
        after: a function that computes further values of a finished run.
    """

    title: str
    claim: str
    recipe: str
    set: list[str]
    variants: dict[str, list[str]]
    rates: list[str] = dataclasses.field(default_factory=list)
    rate_of: str = ""
    after: Callable[[RunFolder, Recipe], dict[str, float]] = lambda folder, recipe: {}


def hold_out_all_but(classes: int, of: int) -> str:
    """Return the setting that trains on `classes` of the `of` training classes, and holds out the
    others.
    """
    return f"validation.class_fraction={1 - classes / of:.6f}"


def cosine_to_memory(folder: RunFolder, recipe: Recipe) -> dict[str, float]:
    """Average the cosine between the class weights and the newest copy in use, from M + 1 steps
    ago.
    """
    if not recipe.loss["num_steps"]:
        return {}
    newest = checkpoint.newest_intact(folder.checkpoints)
    assert newest is not None
    state = newest.state()["loss"]
    slots, stored = len(state["queue_weights"]), int(state["counters"][1])
    past = state["queue_weights"][(stored - 1 - recipe.loss["margin"]) % slots]
    cosines = torch.nn.functional.cosine_similarity(state["loss.class_weights"], past)
    return {"cosine to memory": float(cosines.mean())}


def every_level(folder: RunFolder, recipe: Recipe) -> dict[str, float]:
    """Measure MAP@R and Recall@1 for all subsets of the three levels."""
    names, found = dict(zip("LMH", recipe.backbone["levels"], strict=True)), {}
    evaluator, embedded = build_evaluator(recipe, registry()), Embedded.read(folder)
    for label in ("L", "M", "H", "LM", "LH", "MH", "LMH"):
        chosen = select_levels(embedded, recipe, [names[letter] for letter in label])
        metrics = evaluate(evaluator, chosen)
        found[f"{label} recall"], found[f"{label} map"] = metrics["recall@1"], metrics["map@r"]
    return found


def two_phases(rate: str) -> str:
    """Keep a constant rate for 1,000 steps, then let it fall along a cosine to 0."""
    return f'schedule."optimizer.lr"={{kind="cosine", start={rate}, end=0.0, begin=1000}}'


def cosine(rate: str, warmup: int = 10) -> str:
    """Let the rate fall along a cosine to 0 after a warm-up in steps, as in the recipes."""
    return f'schedule."optimizer.lr"={{kind="cosine", start={rate}, end=0.0, warmup={warmup}}}'


COSINES = [cosine(rate) for rate in ("1e-3", "3e-3", "1e-2", "3e-2")]


def falling(first: float | str, last: float) -> str:
    """Use `first` for 70 % of the run, then `last`."""
    return f'{{kind="step", unit="run", values=[{first}, {last}], milestones=[0.7]}}'


def heating(alpha: float, falls: bool) -> list[str]:
    """Use 16 as the loss's alpha for 70 % of the run, then `alpha`; if `falls`, also divide the
    rates by 10 then.
    """
    factor = 0.1 if falls else 1.0
    rates = {"backbone": 1.0, "head": 1.0, "loss": 10.0}
    return [f'schedule."loss.alpha"={falling(16.0, alpha)}'] + [
        f'schedule."optimizer.lr_multipliers.{part}"={falling(first, first * factor)}'
        for part, first in rates.items()
    ]


def memvir(n: int, m: int, warmup: int) -> list[str]:
    """Configure MemVir (N, M) after a warm-up in steps."""
    return [f"loss.num_steps={n}", f"loss.margin={m}", f"loss.warmup_steps={warmup}"]


MEMORIES = {"base": (0, 0), "MemVir (2, 20)": (2, 20), "MemVir (1, 100)": (1, 100)}

STUDIES = {
    "memvir-temperature": Study(
        "MemVir with NormSoftmax on 59 classes, by temperature",
        "MemVir lifts NormSoftmax (Tables 1 and 4)",
        "memvir/glyphs",
        [
            "dataset.max_classes=700",
            *NO_AUGMENTATION,
            hold_out_all_but(59, 350),
            "training.steps=2400",
            # With these settings, an untuned temperature once seemed to show a gain of eight
            # points.
            "backbone.widths=[32, 64, 128]",
            "embedding.layer_norm=true",
            "sampler={name='class-balanced', classes_per_batch=24, images_per_class=4}",
        ],
        {
            f"{label}, T = {temperature}": [
                *memvir(n, m, 600),
                f"loss.loss={{name='norm-softmax', temperature={temperature}}}",
            ]
            for temperature in (0.05, 0.1, 0.2, 0.5)
            for label, (n, m) in MEMORIES.items()
        },
        rates=[f"optimizer.lr={rate}" for rate in ("1e-3", "3e-3", "1e-2", "3e-2")],
        rate_of="base, T = 0.2",
    ),
    "memvir-length": Study(
        "MemVir with NormSoftmax on 172 classes, by the length of the run",
        "MemVir needs long training (the authors' code: 2,000 epochs)",
        "memvir/glyphs",
        [hold_out_all_but(172, 1724), "loss.loss.temperature=0.2"],
        {
            f"{label}, {steps} steps": [*memvir(n, m, steps // 4), f"training.steps={steps}"]
            for steps in (400, 1600, 6400)
            for label, (n, m) in MEMORIES.items()
        },
        rates=[f"optimizer.lr={rate}" for rate in ("1e-3", "3e-3", "1e-2")],
        rate_of="base, 1600 steps",
        after=cosine_to_memory,
    ),
    "ice-scale": Study(
        "Instance Cross Entropy's scale after a warm start of 1,000 steps with s = 16",
        "s = 64 is best, 16 and 80 are worse (Table 2)",
        "ice/glyphs",
        [hold_out_all_but(1552, 1724), "training.steps=3400"],
        {
            f"s = {scale}": [
                (
                    f'schedule."loss.scale"={{kind="step", values=[16.0, {scale}.0], '
                    "milestones=[1000]}"
                )
            ]
            for scale in (16, 32, 64, 80)
        },
        rates=[two_phases("1e-3"), two_phases("3e-3"), two_phases("1e-2")],
        rate_of="s = 64",
    ),
    **{
        f"heating-{classes}": Study(
            f"Heated-Up Softmax on {classes} classes: the last 30 % of the run",
            "alpha falls from 16 to 4 with a tenth of the rate: better than alpha = 16 (Tables "
            "1-5)",
            "heated-up/glyphs",
            [
                hold_out_all_but(classes, 1724),
                "training.steps=3600",
                'schedule."loss.alpha"={kind="constant", value=16.0}',
            ],
            {
                f"alpha {alpha:g}, {'a tenth of the rate' if falls else 'the same rate'}": heating(
                    alpha, falls
                )
                for alpha in (16.0, 7.0, 4.0)
                for falls in (False, True)
            },
            rates=[
                f'schedule."optimizer.lr"={{kind="constant", value={rate}}}'
                for rate in ("3e-4", "1e-3", "3e-3", "1e-2", "3e-2")
            ],
            rate_of="alpha 16, the same rate",
        )
        for classes in (102, 1552)
    },
    "rll-margin": Study(
        "Ranked List Loss on H alone, by margin and by the weights of queries",
        "m = 0.4 is best, 0 and 1.2 are worse (Table 11)",
        "rll/glyphs",
        [hold_out_all_but(1552, 1724), "training.steps=3000", "backbone.levels=[]"],
        {
            f"{weights} weights, m = {margin}": [
                f"loss.margin={margin}",
                f"loss.query_weights={weights}",
            ]
            for margin in (0.0, 0.2, 0.4, 0.8, 1.2)
            for weights in ("equal", "total")
        },
        rates=COSINES,
        rate_of="equal weights, m = 0.4",
    ),
    "rll-levels": Study(
        "Ranked List Loss with three levels of 64 channels in one network",
        "levels joined are above each alone (Tables 6 and 7)",
        "rll/glyphs",
        [
            hold_out_all_but(1552, 1724),
            "training.steps=3000",
            "backbone.widths=[64, 64, 64]",
            cosine("3e-3"),
        ],
        {f"{weights} weights": [f"loss.query_weights={weights}"] for weights in ("equal", "total")},
        after=every_level,
    ),
    "norm-softmax-temperature": Study(
        "NormSoftmax's temperature on 100 classes",
        "0.05 and 0.1 are best, both ends are bad (Table 5)",
        "norm-softmax/glyphs",
        [hold_out_all_but(100, 1724), "training.steps=2400"],
        {
            f"T = {temperature}": [f"loss.temperature={temperature}"]
            for temperature in (0.005, 0.01, 0.03, 0.05, 0.1, 0.5, 1.0)
        },
        rates=COSINES,
        rate_of="T = 0.05",
    ),
    "norm-softmax-batch": Study(
        "NormSoftmax's images a class in a batch of 75, on 100 classes",
        "25 a class are best, 75 far the worst (Table 4)",
        "norm-softmax/glyphs",
        [hold_out_all_but(100, 1724), "training.steps=2400"],
        {
            "no balancing": ["sampler={name='shuffled', batch_size=75}"],
            **{
                f"{images} a class": [
                    f"sampler.classes_per_batch={75 // images}",
                    f"sampler.images_per_class={images}",
                ]
                for images in (1, 3, 12, 25, 37, 75)
            },
        },
        rates=COSINES,
        rate_of="25 a class",
    ),
}

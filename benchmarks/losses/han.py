"""Studies for `bench_claims.py --data han`: losses on 10,459 Han characters, with settings chosen
per loss.

Runs of 2 epochs choose a loss's settings on held-out classes; then the loss trains for 6 epochs
with all seeds. The classes of the test half are only measured. docs/guide/han-characters.md
describes the data.

Further studies train NormSoftmax with the settings chosen for it: with a fraction of the classes
per step, and with embeddings of 512 and 2,048 numbers, measured as floats and as bits.
"""

from __future__ import annotations

import time

import numpy as np
from claims import Study, cosine_to_memory, falling
from class_intervals import METRICS, half_width, intervals_by_class
from class_step import measure_class_step

from dml_eval_rs import binarize, evaluate
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder

CLASSES = 10_459
IMAGES = 58_845
HELD_OUT = 0.1
TRAINING_CLASSES = round(CLASSES * (1 - HELD_OUT))
SHORT, LONG = 2, 6  # epochs


def intervals_and_cosine(folder: RunFolder, recipe: Recipe) -> dict[str, float]:
    """Return the intervals, and how far the class weights have moved from the copies in the
    memory.
    """
    return intervals_by_class(folder, recipe) | cosine_to_memory(folder, recipe)


def cost_of_classes(folder: RunFolder, recipe: Recipe) -> dict[str, float]:
    """Return the intervals, and the cost of a step without the network."""
    milliseconds, mebibytes = measure_class_step(recipe, TRAINING_CLASSES)
    return intervals_by_class(folder, recipe) | {"ms a step": milliseconds, "MiB": mebibytes}


def floats_and_bits(folder: RunFolder, recipe: Recipe) -> dict[str, float]:
    """Also measure the embeddings as bits, and the processor time of both searches on a single
    thread.
    """
    labels, embeddings = np.load(folder.labels()), np.load(folder.embeddings())
    started = time.process_time()
    evaluate(embeddings, labels, metrics=METRICS, threads=1)
    between = time.process_time()
    bits = evaluate(binarize(embeddings), labels, metrics=METRICS, similarity="hamming", threads=1)
    ended = time.process_time()
    return intervals_by_class(folder, recipe) | {
        "bits: Recall@1": bits["recall@1"],
        "bits: Recall@1 ± by class": half_width(bits, "recall@1", labels),
        "bits: MAP@R": bits["map@r"],
        "bits: MAP@R ± by class": half_width(bits, "map@r", labels),
        "floats: s": between - started,
        "bits: s": ended - between,
    }


def epochs(count: int, batch: int) -> str:
    """Set the number of steps that draw `count` epochs of the training classes."""
    return f"training.steps={round(count * IMAGES * (1 - HELD_OUT) / batch)}"


COMMON = [f"validation.class_fraction={HELD_OUT}", "checkpoints.every=0"]
CONSTANT_RATE = 'schedule."optimizer.lr"={kind="constant", value=1e-3}'
CHOSEN = [*COMMON, "loss.temperature=0.1", "optimizer.lr=3e-3"]  # chosen by NormSoftmax's study


def study(
    title: str, claim: str, recipe: str, batch: int, changes: list[str], rates: list[str]
) -> Study:
    """Make a loss's study: a short run per setting, then long runs with the chosen setting."""
    return Study(
        title,
        claim,
        recipe,
        [*COMMON, *changes],
        {f"{count} epochs": [epochs(count, batch)] for count in (SHORT, LONG)},
        rates=rates,
        rate_of=f"{SHORT} epochs",
        after=intervals_by_class,
    )


def settings(key: str, values: tuple[float, ...]) -> list[str]:
    """Return changes of a key with the learning rates 3e-3, 3e-3 and 1e-2."""
    rates = ("3e-3", "3e-3", "1e-2")
    return [
        f"{key}={value} ; optimizer.lr={rate}" for value, rate in zip(values, rates, strict=True)
    ]


def memvir_warmup(batch: int) -> list[str]:
    """Start the memory after a quarter of the short run's steps."""
    return [f"loss.warmup_steps={round(SHORT * IMAGES * (1 - HELD_OUT) / batch / 4)}"]


def of_fractions(count: int, fractions: tuple[float, ...], factor: int = 1) -> dict[str, list[str]]:
    """Make variants with these fractions of the classes, and `factor` times the learning rate for
    class weights.
    """
    faster = [f"optimizer.lr_multipliers.loss={factor}.0"] if factor > 1 else []
    label = f" at {factor} times the rate" if factor > 1 else ""
    sampled = (
        "loss={name='sampled-classes', class_fraction=%s, loss={name='norm-softmax', "
        "temperature=0.1}}"
    )
    return {
        f"{fraction:.0%} of the classes{label}, {count} epochs": [
            epochs(count, 128),
            *([sampled % fraction] if fraction < 1 else []),
            *faster,
        ]
        for fraction in fractions
    }


STUDIES = {
    "ranked-list": study(
        "Ranked List Loss",
        "above NormSoftmax's and ICE's figures with three levels (Table 6)",
        "rll/glyphs-han",
        180,
        [],
        [f"optimizer.lr={rate}" for rate in ("1e-3", "3e-3", "1e-2")],
    ),
    "ice": study(
        "Instance Cross Entropy",
        "s = 64 is best (Table 2)",
        "ice/glyphs-han",
        180,
        [],
        settings("loss.scale", (16.0, 64.0, 16.0)),
    ),
    "norm-softmax": study(
        "NormSoftmax",
        "classification is competitive with pairs (Tables 1 to 3)",
        "norm-softmax/glyphs-han",
        128,
        [],
        settings("loss.temperature", (0.1, 0.2, 0.1)),
    ),
    "memvir": study(
        "MemVir (2, 100) with NormSoftmax",
        "MemVir lifts NormSoftmax (Tables 1 and 4)",
        "memvir/glyphs-han",
        128,
        memvir_warmup(128),
        settings("loss.loss.temperature", (0.1, 0.2, 0.1)),
    ),
    "heated-up": study(
        "Heated-Up Softmax (HLN)",
        "alpha falls from 16 to 4 with a tenth of the rate (Tables 1 to 5)",
        "heated-up/glyphs-han",
        128,
        [],
        [
            (
                f'schedule."optimizer.lr"={falling(rate, rate / 10)} ; '
                f'schedule."loss.alpha"={falling(alpha, alpha / 4)}'
            )
            for rate, alpha in ((3e-3, 16.0), (3e-3, 8.0), (1e-3, 16.0))
        ],
    ),
    "sup-con": study(
        "SupCon of pytorch-metric-learning",
        "a strong baseline of today",
        "ice/glyphs-han",
        180,
        [],
        [
            f"loss={{name='pml/SupConLoss', temperature={temperature}}} ; optimizer.lr={rate}"
            for temperature, rate in ((0.1, 3e-3), (0.05, 3e-3), (0.1, 1e-2))
        ],
    ),
    "proxy-anchor": study(
        "Proxy-Anchor",
        "a strong baseline of today",
        "norm-softmax/glyphs-han",
        128,
        ["loss={name='proxy-anchor'}"],
        [
            *(
                f"optimizer.lr={rate} ; optimizer.lr_multipliers.loss={factor}"
                for rate, factor in (
                    (3e-3, 1.0),
                    (3e-3, 10.0),
                    (1e-2, 1.0),
                    (1e-3, 1.0),
                    (1e-3, 10.0),
                )
            ),
            "optimizer.lr=0.003 ; loss.scale=16.0",
        ],
    ),
    "heating": Study(
        f"Heating up against a fixed alpha, {LONG} epochs",
        "alpha that falls from 16 to 4 is better than alpha = 16 (Tables 1 to 5)",
        "heated-up/glyphs-han",
        [*COMMON, epochs(LONG, 128), f'schedule."optimizer.lr"={falling(1e-3, 1e-4)}'],
        {
            f"alpha {alpha:g}": [f'schedule."loss.alpha"={falling(alpha, alpha)}']
            for alpha in (16.0, 4.0)
        },
        after=intervals_by_class,
    ),
    "memvir-constant-rate": Study(
        f"MemVir with NormSoftmax at a constant rate, {LONG} epochs",
        "MemVir lifts NormSoftmax (Tables 1 and 4)",
        "memvir/glyphs-han",
        [*COMMON, epochs(LONG, 128), "loss.loss.temperature=0.1", CONSTANT_RATE],
        {
            f"base, {LONG} epochs": ["loss.num_steps=0", "loss.margin=0"],
            f"MemVir (2, 100), {LONG} epochs": [],
        },
        after=intervals_and_cosine,
    ),
    "class-fraction": Study(
        "NormSoftmax, each step compared with a fraction of the classes",
        "on SOP 10 % of the classes cost less than 1 % of Recall@1, 1 % cost 3.8 (Figure 4)",
        "norm-softmax/glyphs-han",
        CHOSEN,
        {
            **of_fractions(SHORT, (1.0, 0.3, 0.1, 0.01)),
            **of_fractions(SHORT, (1.0, 0.1), 3),
            **of_fractions(SHORT, (0.1,), 10),
            **of_fractions(LONG, (1.0, 0.1, 0.01)),
            **of_fractions(LONG, (0.1,), 10),
        },
        after=cost_of_classes,
    ),
    "codes": Study(
        "NormSoftmax as floats and as bits",
        "on SOP 2,048 bits have the Recall@1 of 512 floats, 78.2, and 2,048 floats 79.5 (Table 6)",
        "norm-softmax/glyphs-han",
        CHOSEN,
        {
            f"{dim:,} dimensions, {LONG} epochs": [epochs(LONG, 128), f"embedding.dim={dim}"]
            for dim in (512, 2048)
        },
        after=floats_and_bits,
    ),
}

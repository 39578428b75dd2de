"""The studies of `bench_claims.py --data han`: losses on 10,459 Han characters, each with its own settings.

Every loss chooses its settings on held-out classes in runs of two epochs, and then trains for six with every seed. The
test half's classes are measured and choose nothing. docs/guide/han-characters.md says what the data are.
"""

from __future__ import annotations

import numpy as np
from claims import Study

from dml_eval_rs import evaluate
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder

CLASSES = 10_459
IMAGES = 58_845
HELD_OUT = 0.1
SHORT, LONG = 2, 6  # epochs


def intervals_by_class(folder: RunFolder, recipe: Recipe) -> dict[str, float]:
    """Halve the widths of the 95 % cluster-bootstrap intervals, in percent: the spread of the test classes."""
    labels = np.load(folder.labels())
    evaluation = evaluate(np.load(folder.embeddings()), labels, recall_at=[1])
    found = {}
    for title, name in (("Recall@1 ± by class", "recall@1"), ("MAP@R ± by class", "map_at_r")):
        interval = evaluation.confidence_interval(name, by=labels)
        found[title] = (interval.high - interval.low) / 2
    return found


def epochs(count: int, batch: int) -> str:
    """The number of steps in which so many epochs of the classes that train are drawn."""
    return f"training.steps={round(count * IMAGES * (1 - HELD_OUT) / batch)}"


def study(title: str, claim: str, recipe: str, batch: int, changes: list[str], rates: list[str]) -> Study:
    """Make the study of one loss: a short run for each setting, then a long one."""
    return Study(
        title,
        claim,
        recipe,
        [f"validation.class_fraction={HELD_OUT}", "checkpoints.every=0", *changes],
        {f"{count} epochs": [epochs(count, batch)] for count in (SHORT, LONG)},
        rates=rates,
        rate_of=f"{SHORT} epochs",
        after=intervals_by_class,
    )


def memvir_warmup(batch: int) -> list[str]:
    """The memory starts after a quarter of the long run, and after a quarter of the short one's steps, too."""
    return [f"loss.warmup_steps={round(SHORT * IMAGES * (1 - HELD_OUT) / batch / 4)}"]


STUDIES = {
    "ranked-list": study(
        "Ranked List Loss",
        "above NormSoftmax's and ICE's figures with three levels (Table 6)",
        "rll/glyphs-han",
        180,
        [],
        ["optimizer.lr=1e-3", "optimizer.lr=3e-3", "optimizer.lr=1e-2"],
    ),
    "ice": study(
        "Instance Cross Entropy",
        "s = 64 is best (Table 2)",
        "ice/glyphs-han",
        180,
        [],
        [
            "loss.scale=16.0 ; optimizer.lr=3e-3",
            "loss.scale=64.0 ; optimizer.lr=3e-3",
            "loss.scale=16.0 ; optimizer.lr=1e-2",
        ],
    ),
    "norm-softmax": study(
        "NormSoftmax",
        "classification is competitive with pairs (Tables 1 to 3)",
        "norm-softmax/glyphs-han",
        128,
        [],
        [
            "loss.temperature=0.1 ; optimizer.lr=3e-3",
            "loss.temperature=0.2 ; optimizer.lr=3e-3",
            "loss.temperature=0.1 ; optimizer.lr=1e-2",
        ],
    ),
    "memvir": study(
        "MemVir (2, 100) with NormSoftmax",
        "MemVir lifts NormSoftmax (Tables 1 and 4)",
        "memvir/glyphs-han",
        128,
        memvir_warmup(128),
        [
            "loss.loss.temperature=0.1 ; optimizer.lr=3e-3",
            "loss.loss.temperature=0.2 ; optimizer.lr=3e-3",
            "loss.loss.temperature=0.1 ; optimizer.lr=1e-2",
        ],
    ),
    "heated-up": study(
        "Heated-Up Softmax (HLN)",
        "alpha falls from 16 to 4 with a tenth of the rate (Tables 1 to 5)",
        "heated-up/glyphs-han",
        128,
        [],
        [
            f'schedule."optimizer.lr"={{kind="step", unit="run", values=[{rate}, {rate / 10}], milestones=[0.7]}}'
            f' ; schedule."loss.alpha"={{kind="step", unit="run", values=[{alpha}, {alpha / 4}], milestones=[0.7]}}'
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
            f"optimizer.lr={rate} ; optimizer.lr_multipliers.loss={factor}"
            for rate, factor in ((3e-3, 1.0), (3e-3, 10.0), (1e-2, 1.0))
        ],
    ),
}

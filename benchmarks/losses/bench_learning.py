"""Compare losses by retrieval on glyphs, with equal networks and budgets, and settings chosen on
held-out classes.

    python benchmarks/losses/bench_learning.py RECORD.jsonl [--minutes 600] [--seeds 3]
        [--steps 1000]

Per loss, a local search chooses a setting, a learning rate (a grid of √10) and, for class losses, a
factor for the class weights' learning rate (a grid of 10). A candidate trains for half the steps,
with a separate seed, on two thirds of the classes in the training half, and is measured by MAP@R on
the other third. The search ends when neighbours on the grid are not better; the grids are
unbounded. The chosen setting then trains on the entire training half with every seed, and is
measured on the test half, which the search doesn't use. An ablation changes a single option of a
chosen setting. To test the papers' claims, use `bench_claims.py`.

When a run finishes, it is appended to RECORD. To resume after an interruption, repeat the command.
To print the tables of recorded runs only, use ``--minutes 0``. The benchmark needs
pytorch-metric-learning, and uses a single thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from learning_run import (
    CLASSES_A_BATCH,
    IMAGES_A_CLASS,
    MAX_CLASSES,
    STRIDE,
    WIDTHS,
    Glyphs,
    Record,
    Setting,
)

STUDENT = {
    2: 12.706,
    3: 4.303,
    4: 3.182,
    5: 2.776,
}  # 97.5 % quantiles with n − 1 degrees of freedom
SEARCH_SEED = 1000


def memvir(num_steps: int, margin: int, loss: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's table of MemVir around a class loss."""
    return {"name": "memvir", "num_steps": num_steps, "margin": margin, "loss": loss}


NORM_SOFTMAX, PROXY_ANCHOR = {"name": "norm-softmax", "temperature": 0.05}, {"name": "proxy-anchor"}
MEMORIES = [(1, 100), (2, 20), (5, 20)]  # N and M of MemVir's Table 1 that fit this budget


def candidates(name: str, **values: tuple[Any, ...]) -> list[Setting]:
    """Return a setting per value of the loss's options, which must be given equal numbers of
    values.
    """
    return [
        Setting({"name": name, **dict(zip(values, each))})
        for each in zip(*values.values(), strict=True)
    ]


HEATED: Any = {"schedule": "step", "heated_alpha": 4.0}
# The search's candidates. The first candidate of a loss is the paper's setting, as far as this
# budget allows.
CANDIDATES: dict[str, list[Setting]] = {
    "instance-cross-entropy": candidates("instance-cross-entropy", scale=(64.0, 16.0)),
    "ranked-list": candidates("ranked-list", margin=(0.4, 0.2)),
    "norm-softmax": candidates("norm-softmax", temperature=(0.05, 0.1)),
    "heated-up-softmax, l2": [Setting({"name": "heated-up-softmax", "alpha": 16.0}, **HEATED)],
    "heated-up-softmax, batch": [
        Setting({"name": "heated-up-softmax", "alpha": 16.0, "feature_norm": "batch"}, **HEATED)
    ],
    "proxy-anchor": [Setting({"name": "proxy-anchor"})],
    "memvir + norm-softmax": [
        Setting(memvir(*nm, NORM_SOFTMAX), schedule="constant") for nm in MEMORIES
    ],
    "memvir + proxy-anchor": [
        Setting(memvir(*nm, PROXY_ANCHOR), schedule="constant") for nm in MEMORIES
    ],
    "matryoshka + norm-softmax": candidates(
        "matryoshka",
        prefixes=([16, 32, 64],) * 2,
        loss=tuple(NORM_SOFTMAX | {"temperature": t} for t in (0.05, 0.1)),
    ),
    "norm-softmax + triplet": candidates(
        "sum",
        terms=tuple(
            {
                "softmax": NORM_SOFTMAX | {"temperature": t},
                "triplet": {"name": "triplet", "margin": 0.3},
            }
            for t in (0.05, 0.1)
        ),
    ),
    "triplet": candidates("triplet", margin=(0.2, 0.05)),
    "triplet, batch all": candidates("triplet", triplets=("batch-all",) * 2, margin=(0.2, 0.05)),
    "contrastive": candidates("contrastive", margin=(1.0, 0.5)),
    "multi-similarity": [
        *candidates("multi-similarity", threshold=(0.5, 1.0)),
        *candidates("multi-similarity", epsilon=(0.3, 3.0)),  # 3 selects all pairs
    ],
    "info-nce": candidates("info-nce", temperature=(0.07, 0.2)),
    "recall-at-k-surrogate": candidates("recall-at-k-surrogate", rank_temperature=(0.01, 0.05)),
    "smooth-ap": candidates("smooth-ap", temperature=(0.01, 0.05)),
    "sup-ap": candidates("sup-ap", temperature=(0.01, 0.05)),
    "sup-con": candidates("sup-con", temperature=(0.1, 0.05)),
    "siglip": [Setting({"name": "siglip"}), Setting({"name": "siglip", "bias": -5.0})],
    "sub-center-arc-face": candidates("sub-center-arc-face", scale=(64.0, 16.0), margin=(0.5, 0.2)),
    "ada-face": candidates("ada-face", scale=(64.0, 16.0), margin=(0.4, 0.2)),
    "pml/TripletMarginLoss": candidates("pml/TripletMarginLoss", margin=(0.05, 0.2)),
    "pml/ContrastiveLoss": candidates(
        "pml/ContrastiveLoss", pos_margin=(0.0, 0.0), neg_margin=(1.0, 0.5)
    ),
    "pml/MultiSimilarityLoss": [
        *candidates("pml/MultiSimilarityLoss", miner=("MultiSimilarityMiner",)),
        Setting({"name": "pml/MultiSimilarityLoss"}),
    ],
    "pml/CircleLoss": candidates("pml/CircleLoss", gamma=(80, 256), m=(0.4, 0.25)),
}
CLASS_LOSSES = [
    label for label in CANDIDATES if any(part in label for part in ("softmax", "proxy", "face"))
]


def change_loss(**changes: Any) -> Callable[[Setting], Setting]:
    """Return a change of the loss's table."""
    return lambda chosen: dataclasses.replace(chosen, loss=chosen.loss | changes)


def change_setting(**changes: Any) -> Callable[[Setting], Setting]:
    """Return a change of other settings."""
    return lambda chosen: dataclasses.replace(chosen, **changes)


# Title → the loss to vary and the variants. A variant equal to the loss's choice will not be run
# again.
ABLATIONS: dict[str, tuple[str, dict[str, Callable[[Setting], Setting]]]] = {
    "Ranked List Loss, Table 9: the temperature of negatives": (
        "ranked-list",
        {
            "T_n = 0": change_loss(negative_temperature=0.0),
            "T_n = 10": change_setting(),  # the default, which the choice doesn't state
            "T_n = 20": change_loss(negative_temperature=20.0),
        },
    ),
    "Making Classification Competitive, section 6.3: the dimension, float and bits": (
        "norm-softmax",
        {f"{dim} dimensions": change_setting(dim=dim) for dim in (64, 128, 256, 512)},
    ),
}


def neighbours(setting: Setting, label: str) -> Iterator[Setting]:
    """Yield the adjacent settings on the grids."""
    for candidate in CANDIDATES[label]:
        yield dataclasses.replace(setting, loss=candidate.loss)
    for ratio in (math.sqrt(0.1), math.sqrt(10)):
        yield dataclasses.replace(setting, lr=float(f"{setting.lr * ratio:.2g}"))
    if label in CLASS_LOSSES:
        for ratio in (0.1, 10.0):
            yield dataclasses.replace(setting, factor=float(f"{setting.factor * ratio:.2g}"))


def choose(record: Record, label: str) -> Setting | None:
    """Return the setting that is not beaten by neighbours on the validation classes, or None if the
    time is up.
    """
    best = None
    pending: Iterable[Setting] = [CANDIDATES[label][0]]
    while True:
        scored = []
        for setting in pending:
            result = record.result("validation", setting, SEARCH_SEED)
            if result is None:
                return None
            scored.append((result["map"], setting))
        top = max(scored, key=lambda pair: pair[0])
        if best is not None and top[0] <= best[0]:
            return best[1]
        best, pending = top, list(neighbours(top[1], label))


def interval(values: list[float]) -> str:
    """Format the mean over seeds and half the width of the 95 % Student interval."""
    if len(values) < 2:
        return f"{values[0]:.4f}"
    half = STUDENT[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.4f} ± {half:.4f}"


def describe(setting: Setting, label: str) -> str:
    """Describe a chosen setting in words."""
    tables = [setting.loss, setting.loss.get("loss", {}), *setting.loss.get("terms", {}).values()]
    words = [
        f"{key} {value}"
        for table in tables
        for key, value in table.items()
        if key not in ("name", "loss", "terms")
    ]
    words += [f"lr {setting.lr:g}"]
    if label in CLASS_LOSSES:
        words += [f"class weights × {setting.factor:g}"]
    return ", ".join([*words, setting.schedule])


def print_results(record: Record, chosen: dict[str, Setting], seeds: int) -> None:
    """Print the tables of all recorded runs."""

    def runs(setting: Setting) -> list[dict[str, float]]:
        results = (record.result("test", setting, seed) for seed in range(seeds))
        return [result for result in results if result is not None]

    print(
        f"glyphs, at most {MAX_CLASSES} classes in both halves, small-conv {WIDTHS} of stride "
        f"{STRIDE}, 64 dimensions but where said; {record.steps['test']} steps of "
        f"{CLASSES_A_BATCH} × {IMAGES_A_CLASS} ({record.steps['validation']} for choosing), AdamW; "
        f"torch {torch.__version__}; mean and 95 % Student interval over seeds; bits are the "
        "signs\n"
    )
    columns = {
        "recall": "Recall@1",
        "map": "MAP@R",
        "code_recall": "Recall@1, bits",
        "code_map": "MAP@R, bits",
    }
    heading = " | ".join(columns.values())
    print(f"| loss | chosen on validation classes | {heading} | seeds | CPU s a run |")
    print("|" + "---|" * (len(columns) + 4))
    for label, setting in chosen.items():
        if results := runs(setting):
            cells = " | ".join(interval([result[key] for result in results]) for key in columns)
            seconds = statistics.median(result["seconds"] for result in results)
            print(
                f"| {label} | {describe(setting, label)} | {cells} | {len(results)} | "
                f"{seconds:.0f} |"
            )
    for title, (label, variants) in ABLATIONS.items():
        if label not in chosen or not (reference := runs(chosen[label])):
            continue
        print(f"\n**{title}** ({label})\n")
        print(f"| variant | {heading} | MAP@R less the choice's, same seeds | seeds |")
        print("|" + "---|" * (len(columns) + 3))
        for words, change in variants.items():
            if results := runs(change(chosen[label])):
                cells = " | ".join(interval([result[key] for result in results]) for key in columns)
                pairs = zip(
                    results, reference, strict=False
                )  # results or reference may have more seeds
                less = interval([a["map"] - b["map"] for a, b in pairs])
                difference = "the choice" if results == reference else less
                print(f"| {words} | {cells} | {difference} | {len(results)} |")


def main() -> None:
    """Train the runs that the record lacks, then print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--seeds", type=int, default=3, choices=sorted(STUDENT))
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    steps = {"validation": arguments.steps // 2, "test": arguments.steps}
    deadline = time.time() + 60 * arguments.minutes
    record = Record(arguments.record, Glyphs(), steps, deadline)
    chosen = {}
    for label in CANDIDATES:
        if (setting := choose(record, label)) is not None:
            chosen[label] = setting
    varied = [
        change(chosen[label])
        for label, variants in ABLATIONS.values()
        if label in chosen
        for change in variants.values()
    ]
    for settings in (
        chosen.values(),
        varied,
    ):  # ablations come last, so that they are the first to be missing after an interruption
        for seed in range(arguments.seeds):
            for setting in settings:
                record.result("test", setting, seed)
    print_results(record, chosen, arguments.seeds)


if __name__ == "__main__":
    main()

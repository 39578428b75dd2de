"""Retrieval by loss: glyphs, one network, one budget, hyper-parameters chosen on classes held out of training.

    python benchmarks/losses/bench_learning.py RECORD.jsonl [--minutes 600] [--seeds 3] [--steps 1000]

For each loss a local search chooses its setting, its learning rate (a grid of √10) and, for class losses, the factor on
the class weights' learning rate (a grid of 10). A candidate trains for half the steps on two thirds of the training
half's classes with a separate seed, and is measured by MAP@R on the other third, until no neighbour on the grid is
better. The grids have no ends, so no choice lies at one. The choice then trains on the whole training half with each
seed and is measured on the test half, which no choice used. An ablation changes one setting of a choice.
`bench_claims.py` tests the papers' claims.

Every run is appended to RECORD at once: the same command resumes after an interruption, and ``--minutes 0`` prints the
tables of the recorded runs. Needs dml-train, dml-eval-rs and pytorch-metric-learning. Uses one thread.
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
from learning_run import CLASSES_A_BATCH, IMAGES_A_CLASS, MAX_CLASSES, STRIDE, WIDTHS, Glyphs, Record, Setting

STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantiles for n − 1 degrees of freedom
SEARCH_SEED = 1000


def memvir(num_steps: int, margin: int, loss: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's table of MemVir around a class loss."""
    return {"name": "memvir", "num_steps": num_steps, "margin": margin, "loss": loss}


NORM_SOFTMAX, PROXY_ANCHOR = {"name": "norm-softmax", "temperature": 0.05}, {"name": "proxy-anchor"}
MEMORIES = [(1, 100), (2, 20), (5, 20)]  # N and M: MemVir's Table 1, and within this budget

# Candidates of the search. The first of each is its paper's setting, as far as this budget allows.
CANDIDATES: dict[str, list[Setting]] = {
    "instance-cross-entropy": [Setting({"name": "instance-cross-entropy", "scale": s}) for s in (64.0, 16.0)],
    "ranked-list": [Setting({"name": "ranked-list", "margin": m}) for m in (0.4, 0.2)],
    "norm-softmax": [Setting({"name": "norm-softmax", "temperature": t}) for t in (0.05, 0.1)],
    "heated-up-softmax, l2": [
        Setting({"name": "heated-up-softmax", "alpha": 16.0}, schedule="step", heated_alpha=4.0)
    ],
    "heated-up-softmax, batch": [
        Setting(
            {"name": "heated-up-softmax", "alpha": 16.0, "feature_norm": "batch"},
            schedule="step",
            heated_alpha=4.0,
        )
    ],
    "proxy-anchor": [Setting({"name": "proxy-anchor"})],
    "memvir + norm-softmax": [Setting(memvir(*nm, NORM_SOFTMAX), schedule="constant") for nm in MEMORIES],
    "memvir + proxy-anchor": [Setting(memvir(*nm, PROXY_ANCHOR), schedule="constant") for nm in MEMORIES],
    "matryoshka + norm-softmax": [
        Setting({"name": "matryoshka", "prefixes": [16, 32, 64], "loss": NORM_SOFTMAX | {"temperature": t}})
        for t in (0.05, 0.1)
    ],
    "triplet": [Setting({"name": "triplet", "margin": m}) for m in (0.2, 0.05)],
    "triplet, batch all": [
        Setting({"name": "triplet", "triplets": "batch-all", "margin": m}) for m in (0.2, 0.05)
    ],
    "contrastive": [Setting({"name": "contrastive", "margin": m}) for m in (1.0, 0.5)],
    "multi-similarity": [Setting({"name": "multi-similarity", "threshold": t}) for t in (0.5, 1.0)],
    "info-nce": [Setting({"name": "info-nce", "temperature": t}) for t in (0.07, 0.2)],
    "recall-at-k-surrogate": [
        Setting({"name": "recall-at-k-surrogate", "rank_temperature": t}) for t in (0.01, 0.05)
    ],
    "smooth-ap": [Setting({"name": "smooth-ap", "temperature": t}) for t in (0.01, 0.05)],
    "sup-ap": [Setting({"name": "sup-ap", "temperature": t}) for t in (0.01, 0.05)],
    "sup-con": [Setting({"name": "sup-con", "temperature": t}) for t in (0.1, 0.05)],
    "siglip": [Setting({"name": "siglip"}), Setting({"name": "siglip", "bias": -5.0})],
    "sub-center-arc-face": [
        Setting({"name": "sub-center-arc-face", "scale": s, "margin": m})
        for s, m in ((64.0, 0.5), (16.0, 0.2))
    ],
    "ada-face": [
        Setting({"name": "ada-face", "scale": s, "margin": m}) for s, m in ((64.0, 0.4), (16.0, 0.2))
    ],
    "pml/TripletMarginLoss": [Setting({"name": "pml/TripletMarginLoss", "margin": m}) for m in (0.05, 0.2)],
    "pml/ContrastiveLoss": [
        Setting({"name": "pml/ContrastiveLoss", "pos_margin": 0.0, "neg_margin": m}) for m in (1.0, 0.5)
    ],
    "pml/MultiSimilarityLoss": [
        Setting({"name": "pml/MultiSimilarityLoss", "miner": "MultiSimilarityMiner"}),
        Setting({"name": "pml/MultiSimilarityLoss"}),
    ],
    "pml/CircleLoss": [
        Setting({"name": "pml/CircleLoss", "gamma": g, "m": m}) for g, m in ((80, 0.4), (256, 0.25))
    ],
}
CLASS_LOSSES = [label for label in CANDIDATES if any(part in label for part in ("softmax", "proxy", "face"))]


def change_loss(**changes: Any) -> Callable[[Setting], Setting]:
    """Return a change of the loss's table."""
    return lambda chosen: dataclasses.replace(chosen, loss=chosen.loss | changes)


def change_setting(**changes: Any) -> Callable[[Setting], Setting]:
    """Return a change of other settings."""
    return lambda chosen: dataclasses.replace(chosen, **changes)


# Title → the row whose choice is varied, and its variants. A variant that equals the choice is not run twice.
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
    """Yield the settings one step away on the grids."""
    for candidate in CANDIDATES[label]:
        yield dataclasses.replace(setting, loss=candidate.loss)
    for ratio in (math.sqrt(0.1), math.sqrt(10)):
        yield dataclasses.replace(setting, lr=float(f"{setting.lr * ratio:.2g}"))
    if label in CLASS_LOSSES:
        for ratio in (0.1, 10.0):
            yield dataclasses.replace(setting, factor=float(f"{setting.factor * ratio:.2g}"))


def choose(record: Record, label: str) -> Setting | None:
    """Search for the setting that no neighbour beats on the validation classes; None if the time is up."""
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
    """Format the mean and the half-width of its 95 % Student interval over the seeds."""
    if len(values) < 2:
        return f"{values[0]:.4f}"
    half = STUDENT[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.4f} ± {half:.4f}"


def describe(setting: Setting, label: str) -> str:
    """Describe a chosen setting in words."""
    inner = setting.loss.get("loss", {})
    words = [f"{key} {value}" for key, value in setting.loss.items() if key not in ("name", "loss")]
    words += [f"{key} {value}" for key, value in inner.items() if key != "name"]
    words += [f"lr {setting.lr:g}"]
    if label in CLASS_LOSSES:
        words += [f"class weights × {setting.factor:g}"]
    return ", ".join([*words, setting.schedule])


def print_variants(
    columns: dict[str, str],
    rows: dict[str, list[dict[str, float]]],
    reference: list[dict[str, float]],
    name: str,
) -> None:
    """Print a table of variants and their differences from the reference, which may be one of them.

    Args:
        columns: key of a figure → its heading.
        rows: the runs of each variant, in the order of their seeds.
        reference: the runs of the reference, in the order of their seeds.
        name: the name of the reference.
    """
    print(f"| variant | {' | '.join(columns.values())} | MAP@R less {name}'s, same seeds | seeds |")
    print("|" + "---|" * (len(columns) + 3))
    for words, results in rows.items():
        if not results:
            continue
        cells = " | ".join(interval([result[key] for result in results]) for key in columns)
        pairs = zip(results, reference, strict=False)  # the same seeds; one of the two may have more
        difference = name if results == reference else interval([a["map"] - b["map"] for a, b in pairs])
        print(f"| {words} | {cells} | {difference} | {len(results)} |")


def print_results(record: Record, chosen: dict[str, Setting], seeds: int) -> None:
    """Print the tables of all recorded runs."""

    def runs(setting: Setting) -> list[dict[str, float]]:
        results = (record.result("test", setting, seed) for seed in range(seeds))
        return [result for result in results if result is not None]

    print(
        f"glyphs, at most {MAX_CLASSES} classes in both halves, small-conv {WIDTHS} of stride {STRIDE}, 64 dimensions "
        f"but where said; {record.steps['test']} steps of {CLASSES_A_BATCH} × {IMAGES_A_CLASS} "
        f"({record.steps['validation']} for choosing), AdamW; torch {torch.__version__}; mean and 95 % Student "
        "interval over seeds; bits are the signs\n"
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
            print(f"| {label} | {describe(setting, label)} | {cells} | {len(results)} | {seconds:.0f} |")
    for title, (label, variants) in ABLATIONS.items():
        if label not in chosen or not (reference := runs(chosen[label])):
            continue
        print(f"\n**{title}** ({label})\n")
        found = {words: runs(change(chosen[label])) for words, change in variants.items()}
        print_variants(columns, found, reference, "the choice")


def main() -> None:
    """Run the runs that the record lacks, then print the tables."""
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
    for settings in (chosen.values(), varied):  # an interrupted benchmark lacks seeds of ablations first
        for seed in range(arguments.seeds):
            for setting in settings:
                record.result("test", setting, seed)
    print_results(record, chosen, arguments.seeds)


if __name__ == "__main__":
    main()

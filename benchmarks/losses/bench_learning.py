"""Which losses learn what: glyphs, one backbone, one budget, hyper-parameters chosen on classes held out of training.

    python benchmarks/losses/bench_learning.py [--threads 2] [--seeds 3] [--steps 300]

Each loss has a few candidate settings and two learning rates. Each is trained on two thirds of the training half's
classes with a seed of its own and measured on the other third; the best by MAP@R is then trained on the whole
training half with each seed and measured on the test half, which no choice has seen. Needs dml-train and
dml-eval-rs; rows named ``pml/…`` need pytorch-metric-learning.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from typing import Any

import numpy as np
import torch
from torch import nn

import dml_eval_rs
from dml_core import ClassBalancedSampler, registry

LOSS_RATE = 10.0  # class weights learn that much faster than the network, whichever the loss
DIM, CLASSES_A_BATCH, IMAGES_A_CLASS, MAX_CLASSES = 64, 24, 4, 700
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantiles for n − 1 degrees of freedom

Table = dict[str, Any]
# The first setting of each is its paper's; the others are the ablations that the papers make.
CANDIDATES: dict[str, list[Table]] = {
    "instance-cross-entropy": [{"scale": 64.0}, {"scale": 16.0}],
    "instance-cross-entropy, s = 1": [{"name": "instance-cross-entropy", "scale": 1.0}],
    "ranked-list": [{}, {"margin": 0.2}],
    "norm-softmax": [{"temperature": 0.05}, {"temperature": 0.1}],
    "norm-softmax, temperature 1": [{"name": "norm-softmax", "temperature": 1.0}],
    "heated-up-softmax, 16 then 4": [{"name": "heated-up-softmax", "heat": True}],
    "heated-up-softmax, 16 fixed": [{"name": "heated-up-softmax"}],
    "proxy-anchor": [{}],
    "memvir + norm-softmax": [
        {
            "name": "memvir",
            "num_steps": 2,
            "margin": margin,
            "loss": {"name": "norm-softmax", "temperature": 0.05},
        }
        for margin in (10, 20)
    ],
    "memvir + proxy-anchor": [
        {"name": "memvir", "num_steps": 2, "margin": margin, "loss": {"name": "proxy-anchor"}}
        for margin in (10, 20)
    ],
    "pml/TripletMarginLoss": [{"margin": 0.05}, {"margin": 0.2}],
    "pml/ContrastiveLoss": [{"pos_margin": 0.0, "neg_margin": 1.0}, {"pos_margin": 0.0, "neg_margin": 0.5}],
    "pml/MultiSimilarityLoss": [{"miner": "MultiSimilarityMiner"}, {}],
    "pml/CircleLoss": [{"gamma": 80}, {"gamma": 256, "m": 0.25}],
}


class Network(nn.Module):
    def __init__(self, in_channels: int) -> None:
        super().__init__()
        table = {"name": "small-conv", "widths": [16, 32, 64]}
        self.backbone = registry().build("backbones", table, {"in_channels": in_channels})
        self.head = nn.Linear(self.backbone.num_features, DIM)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.backbone(images)
        pooled = features.mean(dim=(2, 3)) if features.ndim == 4 else features
        embeddings: torch.Tensor = self.head(nn.functional.layer_norm(pooled, pooled.shape[1:]))
        return embeddings


def train_and_measure(
    split: Any,
    train_on: np.ndarray,
    measured: Any,
    measure_on: np.ndarray,
    table: Table,
    lr: float,
    seed: int,
    steps: int,
) -> tuple[float, float, float, float]:
    """Recall@1 and MAP@R of the embeddings, and both again of their signs."""
    torch.manual_seed(seed)
    classes, labels = np.unique(split.labels[train_on], return_inverse=True)
    options = {key: value for key, value in table.items() if key != "heat"}
    context = {"num_classes": len(classes), "embedding_dim": DIM, "seed": seed}
    loss = registry().build("losses", options, context)
    in_channels = split.load(train_on[:1]).shape[1]
    network = Network(in_channels)
    groups = [
        {"params": network.parameters(), "factor": 1.0},
        {"params": loss.parameters(), "factor": LOSS_RATE, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, weight_decay=1e-3)
    sampler = ClassBalancedSampler(labels, CLASSES_A_BATCH, IMAGES_A_CLASS, seed=seed)
    random = np.random.default_rng(seed)
    for step in range(steps):
        heated = table.get("heat") and step >= 0.7 * steps
        if heated:
            loss.alpha = 4.0
        rate = lr * (0.1 if heated else 1.0) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        batch = sampler.batch_at(*divmod(step, len(sampler)))
        images = split.load(train_on[batch], random.integers(0, 2**63, len(batch), dtype=np.uint64))
        value = loss(network(images), torch.from_numpy(labels[batch]))
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
    network.eval()
    with torch.no_grad():
        parts = [network(measured.load(measure_on[i : i + 512])) for i in range(0, len(measure_on), 512)]
    embeddings, truth = torch.cat(parts).numpy(), measured.labels[measure_on]
    result = dml_eval_rs.evaluate(embeddings, truth, recall_at=(1,))
    codes = dml_eval_rs.evaluate_codes(dml_eval_rs.binarize(embeddings), truth, recall_at=(1,))
    return result.recall[1], result.map_at_r, codes.recall[1], codes.map_at_r


def interval(values: list[float]) -> str:
    """The mean and the half-width of its 95 % Student interval over the seeds."""
    if len(values) < 2:
        return f"{values[0]:.4f}"
    half = STUDENT[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.4f} ± {half:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3, choices=sorted(STUDENT))
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    data = registry().build("datasets", {"name": "glyphs", "max_classes": MAX_CLASSES}, {"seed": 0})
    whole, test = np.arange(len(data.train.labels)), np.arange(len(data.test.labels))
    held_out = data.train.labels % 3 == 2
    fit, validate = whole[~held_out], whole[held_out]
    known = set(registry().entries("losses"))
    print(
        f"glyphs, at most {MAX_CLASSES} classes a half, small-conv 16-32-64, {DIM} dimensions, "
        f"{arguments.steps} steps of {CLASSES_A_BATCH} × {IMAGES_A_CLASS}, AdamW, cosine, class weights at "
        f"{LOSS_RATE:g} × the rate; torch {torch.__version__}; mean and 95 % interval over "
        f"{arguments.seeds} seeds\n"
    )
    print(
        "| loss | chosen on validation classes | Recall@1 | MAP@R | Recall@1, 64 bits | MAP@R, 64 bits | s a run |"
    )
    print("|---|---|---|---|---|---|---|")
    for label, candidates in CANDIDATES.items():
        tables = [{"name": label, **candidate} for candidate in candidates]
        if label.startswith("pml/") and label not in known:
            continue
        scored = []
        for table, lr in itertools.product(tables, (1e-3, 4e-3)):
            score = train_and_measure(data.train, fit, data.train, validate, table, lr, 1000, arguments.steps)
            scored.append((score[1], table, lr))
        _, table, lr = max(scored, key=lambda item: item[0])
        started = time.perf_counter()
        runs = [
            train_and_measure(data.train, whole, data.test, test, table, lr, seed, arguments.steps)
            for seed in range(arguments.seeds)
        ]
        seconds = (time.perf_counter() - started) / arguments.seeds
        chosen = (
            ", ".join(f"{k} {v}" for k, v in table.items() if k not in ("name", "loss", "heat")) or "defaults"
        )
        columns = " | ".join(interval([run[i] for run in runs]) for i in range(4))
        print(f"| {label} | {chosen}, lr {lr:g} | {columns} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()

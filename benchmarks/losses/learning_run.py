"""A training run of the learning benchmark: a small network and a loss on glyphs, and the retrieval
metrics.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from dml_core import ClassBalancedSampler, Split, registry
from dml_eval_rs import binarize, evaluate

CLASSES_A_BATCH, IMAGES_A_CLASS, MAX_CLASSES = 24, 4, 700
WIDTHS, STRIDE = [32, 64, 128], 2
# after this fraction, schedule "step" divides the rate by 10, and alpha becomes `heated_alpha`
PHASE = 0.7


@dataclasses.dataclass(frozen=True)
class Setting:
    """Settings that, with seed, steps and data, determine a run.

    Attributes:
        loss: the loss's table, as in a recipe.
        lr: the network's learning rate.
        factor: the loss's parameters use this multiple of the learning rate.
        schedule: the learning rate falls to 0 ("cosine"), stays ("constant"), or is divided by 10
            at `PHASE` ("step").
        heated_alpha: heated-up softmax's alpha after `PHASE`; if None, alpha doesn't change.
        warmup: MemVir's warm-up, as a fraction of the run.
        dim: the embedding's dimension.
    """

    loss: dict[str, Any]
    lr: float = 3.2e-3
    factor: float = 10.0
    schedule: str = "cosine"
    heated_alpha: float | None = None
    warmup: float = 0.5
    dim: int = 64

    def rate(self, progress: float) -> float:
        """Return the learning rate when a fraction `progress` of the run is done."""
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * progress))
        return self.lr * (0.1 if self.schedule == "step" and progress >= PHASE else 1.0)


class Part(NamedTuple):
    """Glyphs to train on, and glyphs to measure."""

    train_on: npt.NDArray[np.int64]  # items of the training half
    measured: Split
    measure_on: npt.NDArray[np.int64]  # items of `measured`


class Glyphs:
    """The glyphs to train on and to measure, for choosing settings and for results."""

    def __init__(self) -> None:
        self.data = registry().build(
            "datasets", {"name": "glyphs", "max_classes": MAX_CLASSES}, {"seed": 0}
        )
        train, test = self.data.train, self.data.test
        held_out = train.labels % 3 == 2
        whole, everything = np.arange(len(train)), np.arange(len(test))
        self.parts = {
            "validation": Part(whole[~held_out], train, whole[held_out]),
            "test": Part(whole, test, everything),
        }


class Network(nn.Module):
    """Network with small convolutions, pooling, a parameter-free norm, and a linear embedding."""

    def __init__(self, in_channels: int, dim: int) -> None:
        super().__init__()
        table = {"name": "small-conv", "widths": WIDTHS, "stride": STRIDE}
        self.backbone = registry().build(
            "backbones", table, {"in_channels": in_channels, "pretrained": True}
        )
        self.head = nn.Linear(self.backbone.num_features, dim)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (B, channels, 32, 32) to (B, dim)."""
        features = self.backbone(images.contiguous(memory_format=torch.channels_last)).mean(
            dim=(2, 3)
        )
        embeddings: torch.Tensor = self.head(nn.functional.layer_norm(features, features.shape[1:]))
        return embeddings


def train_and_measure(
    glyphs: Glyphs, part: str, setting: Setting, seed: int, steps: int
) -> dict[str, float]:
    """Train; return Recall@1 and MAP@R of the embeddings and of the signs, with the CPU seconds."""
    started = time.process_time()
    train_on, measured, measure_on = glyphs.parts[part]
    split = glyphs.data.train
    torch.manual_seed(seed)
    classes, labels = np.unique(split.labels[train_on], return_inverse=True)
    table = dict(setting.loss)
    if table["name"] == "memvir":
        table["warmup_steps"] = round(setting.warmup * steps)
    sampler = ClassBalancedSampler(labels, CLASSES_A_BATCH, IMAGES_A_CLASS, seed=seed)
    context = {
        "num_classes": len(classes),
        "embedding_dim": setting.dim,
        "steps_per_epoch": len(sampler),
        "seed": seed,
    }
    network = Network(split.load(train_on[:1]).shape[1], setting.dim)
    loss = registry().build("losses", table, context)
    optimizer = torch.optim.AdamW(
        [
            {"params": network.parameters(), "factor": 1.0},
            {"params": loss.parameters(), "factor": setting.factor, "weight_decay": 0.0},
        ],
        lr=setting.lr,
        weight_decay=1e-3,
        fused=True,
    )
    random = np.random.default_rng(seed)
    for step in range(steps):
        if setting.heated_alpha is not None and step >= PHASE * steps:
            loss.alpha = setting.heated_alpha
        for group in optimizer.param_groups:
            group["lr"] = setting.rate(step / steps) * group["factor"]
        batch = sampler.batch_at(*divmod(step, len(sampler)))
        seeds = random.integers(0, 2**63, len(batch), dtype=np.uint64)
        images = split.load(train_on[batch], seeds)
        value = loss(network(images), torch.from_numpy(labels[batch]))
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
    network.eval()
    with torch.no_grad():
        parts = [
            network(measured.load(measure_on[i : i + 512])) for i in range(0, len(measure_on), 512)
        ]
        embeddings = torch.cat(parts)
        if hasattr(loss, "evaluation_embeddings"):
            embeddings = loss.evaluation_embeddings(embeddings)
    rows, truth = embeddings.numpy(), measured.labels[measure_on]
    metrics = ("recall@1", "map@r")
    result = evaluate(rows, truth, metrics=metrics, threads=1)
    codes = evaluate(binarize(rows), truth, metrics=metrics, similarity="hamming", threads=1)
    return {
        "recall": result["recall@1"],
        "map": result["map@r"],
        "code_recall": codes["recall@1"],
        "code_map": codes["map@r"],
        "seconds": time.process_time() - started,
    }


class Record:
    """Record of finished runs, a line of JSON per run; an interrupted benchmark resumes from it."""

    def __init__(self, path: Path, glyphs: Glyphs, steps: dict[str, int], deadline: float) -> None:
        self.path, self.glyphs, self.steps, self.deadline = path, glyphs, steps, deadline
        self.runs: dict[str, dict[str, float]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self.runs[entry["run"]] = entry["result"]

    def result(self, part: str, setting: Setting, seed: int) -> dict[str, float] | None:
        """Return a run's result from the record, or train now; return None if the time is up."""
        run = json.dumps(
            [part, self.steps[part], seed, dataclasses.asdict(setting)], sort_keys=True
        )
        if run not in self.runs:
            if time.time() >= self.deadline:
                return None
            self.runs[run] = train_and_measure(self.glyphs, part, setting, seed, self.steps[part])
            with self.path.open("a") as file:
                file.write(json.dumps({"run": run, "result": self.runs[run]}) + "\n")
        return self.runs[run]

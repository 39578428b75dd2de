"""A plugin with tiny data, networks, losses and an evaluator, and a recipe of them.

Loader processes and ranks import this module, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

import dml_core.plugin
from dml_core import Component, Plugins, Registry, hookimpl
from dml_train import plugin
from dml_train.networks.backbones import SmallConv


class TinySplit:
    """Images of noise around a pattern for each class; augmentation adds noise by the row's seed."""

    def __init__(self, num_classes: int, per_class: int, seed: int, broken: int = -1) -> None:
        self.broken = broken
        random = np.random.default_rng(seed)
        self.labels = np.repeat(np.arange(num_classes), per_class)
        self.class_names = [f"class {c}" for c in range(num_classes)]
        patterns = random.normal(size=(num_classes, 1, 4, 4))
        noise = random.normal(size=(len(self.labels), 1, 4, 4))
        self.images = (patterns[self.labels] + 0.3 * noise).astype(np.float32)

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, indices: np.ndarray, seeds: np.ndarray | None = None) -> torch.Tensor:
        if self.broken in indices:
            raise OSError("broken image")
        images = self.images[indices]
        if seeds is not None:
            images = images + np.stack(
                [np.random.default_rng(int(s)).normal(scale=0.1, size=(1, 4, 4)) for s in seeds]
            )
        return torch.from_numpy(images.astype(np.float32))

    def picture(self, index: int) -> np.ndarray:
        return np.zeros((4, 4, 3), dtype=np.uint8)


class TinyDataset:
    def __init__(self, num_classes: int = 6, per_class: int = 8, seed: int = 0, broken: int = -1) -> None:
        self.train = TinySplit(num_classes, per_class, seed, broken)
        self.test = TinySplit(num_classes, per_class, seed + 1)
        self.gallery = None
        self.in_channels = 1


class TinyBackbone(nn.Module):
    """A convolution, batch norm and dropout: a network's state and its random draws."""

    def __init__(self, in_channels: int, width: int = 8, dropout: float = 0.1, norm: bool = True) -> None:
        super().__init__()
        self.num_features = width
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1),
            nn.BatchNorm2d(width) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Dropout(dropout),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


class TinyLoss(nn.Module):
    """A softmax over class weights with dropout, and a counter among its buffers."""

    def __init__(self, num_classes: int, embedding_dim: int, scale: float = 4.0, noise: float = 0.1) -> None:
        super().__init__()
        self.class_weights = nn.Parameter(torch.randn(num_classes, embedding_dim))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.scale, self.noise = scale, noise

    def forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, class_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        self.calls += 1
        weights = self.class_weights if class_weights is None else class_weights
        embeddings = embeddings + self.noise * torch.randn_like(embeddings)
        return nn.functional.cross_entropy(
            self.scale * nn.functional.normalize(embeddings) @ nn.functional.normalize(weights).T, labels
        )


class TinySparseLoss(nn.Module):
    """A softmax over the classes of the batch alone, with a sparse gradient, declared or not."""

    def __init__(
        self, num_classes: int, embedding_dim: int, scale: float = 4.0, declares: bool = True
    ) -> None:
        super().__init__()
        self.class_weights = nn.Parameter(torch.randn(num_classes, embedding_dim))
        self.scale, self.declares = scale, declares

    def sparse_parameters(self) -> tuple[str, ...]:
        return ("class_weights",) if self.declares else ()

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        classes, labels = labels.unique(return_inverse=True)
        weights = nn.functional.embedding(classes, self.class_weights, sparse=True)
        return nn.functional.cross_entropy(
            self.scale * nn.functional.normalize(embeddings) @ nn.functional.normalize(weights).T, labels
        )


class TinyEvaluation(dict[str, float]):
    """Metrics without values for each query."""

    per_query: ClassVar[dict[str, np.ndarray]] = {}

    def to_dict(self) -> dict[str, Any]:
        return {**self, "ties": "index"}


class TinyEvaluator:
    """Recall@K and hard negatives by sorting; in place of any other metric it measures Recall@1."""

    def __init__(self, metrics: Sequence[str] = ("recall@1",), seed: int = 0) -> None:
        self.metrics = metrics

    def evaluate(
        self, embeddings: np.ndarray, labels: np.ndarray, gallery: Any = None, gallery_labels: Any = None
    ) -> Any:
        if len(embeddings) != len(labels):
            raise ValueError(f"labels has shape {labels.shape}; expected ({len(embeddings)},)")
        rows = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
        if gallery is None:
            similarity = rows @ rows.T
            np.fill_diagonal(similarity, -2)
            gallery_labels = labels
        else:
            similarity = rows @ np.asarray(gallery).T
        hits = labels[:, None] == np.asarray(gallery_labels)[np.argsort(-similarity, axis=1, kind="stable")]
        ks = {name: int(name.partition("recall@")[2] or 1) for name in self.metrics}
        return TinyEvaluation({name: float(hits[:, :k].any(axis=1).mean()) for name, k in ks.items()})

    def nearest(self, queries: Any, gallery: Any, k: int, *, exclude_self: bool = False) -> Any:
        raise NotImplementedError

    def hard_negatives(
        self, embeddings: np.ndarray, labels: np.ndarray, k: int, *, below: None = None, margin: float = 0.0
    ) -> Any:
        rows = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
        similarity = np.where(labels[:, None] == labels, -2, rows @ rows.T)
        nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(similarity, nearest, axis=1), nearest

    def bytes_per_item(self, dim: int) -> int:
        return 4 * dim


class TinyPlugin:
    @hookimpl
    def dml_datasets(self) -> Iterator[Component]:
        yield Component("tiny", TinyDataset, "noise around patterns")

    @hookimpl
    def dml_backbones(self) -> Iterator[Component]:
        yield Component("tiny", TinyBackbone, "one convolution")
        yield Component("small-conv", SmallConv, "blocks of convolutions, whose outputs are levels")

    @hookimpl
    def dml_losses(self) -> Iterator[Component]:
        yield Component("tiny", TinyLoss, "a softmax")
        yield Component("tiny-sparse", TinySparseLoss, "a softmax over the batch's classes")

    @hookimpl
    def dml_evaluators(self) -> Iterator[Component]:
        yield Component("exact", TinyEvaluator, "recall by sorting")

    @hookimpl
    def dml_loggers(self) -> Iterator[Component]:
        return iter(plugin.dml_loggers())


def make_registry() -> Registry:
    """Return a registry with the components of dml_core and of `TinyPlugin`."""
    plugins = Plugins()
    plugins.register(dml_core.plugin, distribution="dml-core", version="0.1.0")
    plugins.register(TinyPlugin(), distribution="tiny", version="1.0")
    return Registry(plugins)


def make_document(**tables: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's document; arguments replace keys of its tables: ``training={"steps": 3}``."""
    document: dict[str, Any] = {
        "training": {"steps": 12, "seed": 3, "device": "cpu"},
        "dataset": {"name": "tiny"},
        "backbone": {"name": "tiny"},
        "embedding": {"dim": 8},
        "sampler": {"name": "class-balanced", "classes_per_batch": 4, "images_per_class": 2},
        "loss": {"name": "tiny"},
        "optimizer": {"name": "adamw", "lr": 0.01},
        "checkpoints": {"every": 4, "unit": "step"},
        "evaluation": {"baselines": False},
        "logging": {"every": 3, "loggers": [{"name": "jsonl"}]},
    }
    for name, table in tables.items():
        document[name] = {**document.get(name, {}), **table}
    return document

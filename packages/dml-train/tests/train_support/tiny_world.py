"""A plugin with tiny data, networks, losses and evaluators, and a recipe that uses this plugin.

Loader processes and ranks import this module, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

import dml_core.plugin
import dml_train.plugin
from dml_core import Component, DmlError, Kind, Plugins, Registry, hookimpl

HOSTILE = '<script>alert("1")</script>'
NAMES = [HOSTILE, "a & b", '" onerror="alert(1)', "$x^2$", "{{ 7 * 7 }}", "ünïcode ✓"]


class TinySplit:
    """Images of noise around a pattern per class; augmentation adds noise using the row's seed."""

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
    def __init__(
        self, num_classes: int = 6, per_class: int = 8, seed: int = 0, broken: int = -1
    ) -> None:
        self.train = TinySplit(num_classes, per_class, seed, broken)
        self.test = TinySplit(num_classes, per_class, seed + 1)
        self.gallery = None
        self.in_channels = 1


class HostileDataset(TinyDataset):
    """The tiny data with names that would break a careless page, and pictures of different
    sizes.
    """

    def __init__(self, gone: bool = False, seed: int = 0) -> None:
        if gone:
            raise DmlError(f"can't read the image {HOSTILE}.png")
        super().__init__(seed=seed)
        self.test.class_names = NAMES
        self.test.picture = lambda i: np.full(
            (200, 150, 3) if i % 2 else (4, 4, 3), i, dtype=np.uint8
        )


class TinyBackbone(nn.Module):
    """A convolution, batch norm and dropout: a network with state and random draws."""

    def __init__(
        self, in_channels: int, width: int = 8, dropout: float = 0.1, norm: bool = True
    ) -> None:
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
    """A softmax over class weights with noise, and a buffer that counts calls."""

    def __init__(
        self, num_classes: int, embedding_dim: int, scale: float = 4.0, noise: float = 0.1
    ) -> None:
        super().__init__()
        self.class_weights = nn.Parameter(torch.randn(num_classes, embedding_dim))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.scale, self.noise = scale, noise

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self.calls += 1
        weights = self.class_weights if class_weights is None else class_weights
        embeddings = embeddings + self.noise * torch.randn_like(embeddings)
        return nn.functional.cross_entropy(
            self.scale * nn.functional.normalize(embeddings) @ nn.functional.normalize(weights).T,
            labels,
        )


class TinySparseLoss(nn.Module):
    """A softmax over only the classes of the batch, with a sparse gradient, declared or not."""

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
            self.scale * nn.functional.normalize(embeddings) @ nn.functional.normalize(weights).T,
            labels,
        )


class TinyEvaluation(dict[str, float]):
    """Metrics, and the values of Recall@K per query, with a fixed interval and a test that only
    subtracts.
    """

    def __init__(self, metrics: Mapping[str, float], per_query: dict[str, np.ndarray]) -> None:
        super().__init__(metrics)
        self.per_query = per_query

    def confidence_interval(self, name: str, level: float) -> SimpleNamespace:
        return SimpleNamespace(low=0.25, high=0.75)

    def compare(self, other: TinyEvaluation, name: str) -> SimpleNamespace:
        difference = float((self.per_query[name] - other.per_query[name]).mean())
        interval = SimpleNamespace(low=-0.5, high=0.5)
        return SimpleNamespace(difference=difference, p_value=0.03125, interval=interval)

    def to_dict(self) -> dict[str, Any]:
        return {**self, "ties": "index"}


class TinyEvaluator:
    """Search, Recall@K and hard negatives by sorting; for any other metric, Recall@1 is
    returned.
    """

    def __init__(self, metrics: Sequence[str] = ("recall@1",), seed: int = 0) -> None:
        self.metrics = metrics

    def nearest(self, queries: Any, gallery: Any, k: int, *, exclude_self: bool = False) -> Any:
        rows, others = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, gallery))
        similarity = rows @ others.T
        if exclude_self:
            np.fill_diagonal(similarity, -2)
        indices = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(similarity, indices, axis=1), indices

    def evaluate(
        self,
        embeddings: np.ndarray,
        labels: np.ndarray,
        gallery: Any = None,
        gallery_labels: Any = None,
    ) -> TinyEvaluation:
        if len(embeddings) != len(labels):
            raise ValueError(f"labels has shape {labels.shape}; expected ({len(embeddings)},)")
        alone = gallery is None
        others, other_labels = (embeddings, labels) if alone else (gallery, gallery_labels)
        _, nearest = self.nearest(embeddings, others, len(others), exclude_self=alone)
        hits = labels[:, None] == np.asarray(other_labels)[nearest]
        ks = {name: int(name.partition("recall@")[2] or 1) for name in self.metrics}
        values = {name: hits[:, :k].any(axis=1).astype(np.float64) for name, k in ks.items()}
        per_query = {
            name: values_Q for name, values_Q in values.items() if name.startswith("recall@")
        }
        return TinyEvaluation(
            {name: float(each.mean()) for name, each in values.items()}, per_query
        )

    def restore(self, metrics: Any, per_query: dict[str, np.ndarray]) -> TinyEvaluation:
        return TinyEvaluation(
            {name: float(each.mean()) for name, each in per_query.items()}, per_query
        )

    def hard_negatives(
        self,
        embeddings: np.ndarray,
        labels: np.ndarray,
        k: int,
        *,
        below: None = None,
        margin: float = 0.0,
    ) -> Any:
        rows = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
        similarity = np.where(labels[:, None] == labels, -2, rows @ rows.T)
        nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(similarity, nearest, axis=1), nearest

    def bytes_per_item(self, dim: int) -> int:
        return 4 * dim


class SignsBySorting(TinyEvaluator):
    """`TinyEvaluator` for the signs of the embeddings."""

    def nearest(self, queries: Any, gallery: Any, k: int, *, exclude_self: bool = False) -> Any:
        signs = (np.where(x > 0, 1.0, -1.0) for x in (queries, gallery))
        return super().nearest(*signs, k, exclude_self=exclude_self)

    def bytes_per_item(self, dim: int) -> int:
        return -(-dim // 8)


class TinyPlugin:
    @hookimpl
    def dml_datasets(self) -> Iterator[Component]:
        yield Component("tiny", TinyDataset, "noise around patterns")
        yield Component("hostile", HostileDataset, "hostile names")

    @hookimpl
    def dml_backbones(self) -> Iterator[Component]:
        yield Component("tiny", TinyBackbone, "one convolution")

    @hookimpl
    def dml_losses(self) -> Iterator[Component]:
        yield Component("tiny", TinyLoss, "a softmax")
        yield Component("tiny-sparse", TinySparseLoss, "a softmax over the batch's classes")

    @hookimpl
    def dml_evaluators(self) -> Iterator[Component]:
        yield Component("exact", TinyEvaluator, "recall by sorting")
        yield Component("hamming", SignsBySorting, "recall by sorting signs")


class Provider:
    """A plugin with a single component."""

    def __init__(self, kind: Kind, name: str, factory: Callable[..., Any]) -> None:
        component = Component(name, factory, "only for a test")
        setattr(self, f"dml_{kind}", hookimpl(lambda: [component]))


def provide(registry: Registry, kind: Kind, name: str, factory: Callable[..., Any]) -> None:
    """Add a component to a registry."""
    registry.plugins.register(Provider(kind, name, factory), distribution=name)


def make_registry() -> Registry:
    """Return a registry with the components of dml_core, of dml_train and of `TinyPlugin`."""
    plugins = Plugins()
    plugins.register(dml_core.plugin, distribution="dml-core", version="0.1.0")
    plugins.register(dml_train.plugin, distribution="dml-train")
    plugins.register(TinyPlugin(), distribution="tiny", version="1.0")
    return Registry(plugins)


def make_document(**tables: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's document. Use arguments to replace keys, for example
    ``training={"steps": 3}``.
    """
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

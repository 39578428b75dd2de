"""Baselines of a run, measured on the test split: raw pixels, and the network before training.

Use baselines to judge whether a metric is good: on easy images, raw pixels score high, too. Both
baselines depend only on the data set and the recipe's seed. They need a pass over the test images
and two evaluations, about twice the cost of evaluating the run, and don't change the run.

Shapes: `B` images, `C` channels, `H`, `W` height and width, `D` dimension of the network's
embedding, `P` of pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from dml_core import DmlError, Registry
from dml_train.files import read_json, write_json
from dml_train.measure.evaluate import evaluate_on_ranks
from dml_train.measure.listing import list_metrics
from dml_train.networks.model import EmbeddingModel
from dml_train.ranks.ranks import Ranks
from dml_train.run_folder import RunFolder
from dml_train.training.build import Experiment, build_model

RAW_PIXELS, UNTRAINED = "raw pixels", "untrained network"
MOST_IMAGES = 100_000  # in test split and gallery; with more, the baselines aren't worth the time
_MOST_PIXELS = 1024  # numbers per image
_OMITTED = "omitted"


@dataclass(frozen=True, slots=True)
class Baselines:
    """The baselines of a run."""

    # A baseline's name → the metrics that ``evaluation.json`` contains for the run, and
    # ``bytes_per_item``.
    metrics: Mapping[str, Mapping[str, Any]]
    omitted: str = ""  # the reason if the run couldn't measure baselines; otherwise empty

    def by_name(self) -> dict[str, dict[str, float]]:
        """Return the baselines' metrics by the names that tables show."""
        return {
            name: {metric.name: metric.value for metric in list_metrics(row)}
            for name, row in self.metrics.items()
        }

    @classmethod
    def read(cls, folder: RunFolder) -> Baselines:
        """Read a run's baselines, if any; raise a `DmlError` if the run isn't finished, or the file
        is damaged.
        """
        stored: dict[str, Any] = {}
        if folder.baselines.name in folder.read_manifest():
            folder.check_results(folder.baselines)
            stored = read_json(folder.baselines)
        return cls(
            {name: row for name, row in stored.items() if name != _OMITTED},
            str(stored.get(_OMITTED, "")),
        )


def measure_baselines(
    experiment: Experiment, folder: RunFolder, registry: Registry, console: Console, ranks: Ranks
) -> None:
    """Measure the baselines of a run, and write the metrics, or the reason if omitted, to
    ``baselines.json``.

    An existing file is kept. Ranks share the work as they do for the trained embedding.
    """
    if ranks.run_on_first(folder.baselines.is_file):
        return
    console.print("measuring raw pixels and the untrained network, for comparison", highlight=False)
    stored: dict[str, Any]
    try:
        stored = _measure(experiment, registry, console, ranks)
    except DmlError as error:
        stored = {_OMITTED: str(error)}
    ranks.run_on_first(lambda: write_json(folder.baselines, stored))


def _measure(
    experiment: Experiment, registry: Registry, console: Console, ranks: Ranks
) -> dict[str, dict[str, Any]]:
    dataset, evaluator = experiment.dataset, experiment.evaluator
    count = len(dataset.test) + (0 if dataset.gallery is None else len(dataset.gallery))
    if count > MOST_IMAGES:
        raise DmlError(f"the test split contains {count:,} images, more than {MOST_IMAGES:,}")
    model = build_model(experiment.recipe, dataset.in_channels, registry, experiment.device)
    both = _NetworkAndPixels(model, dataset.test.load(np.zeros(1, dtype=np.int64)).shape[1:])
    embedded = experiment.embed_test(console, ranks, both)
    dim = model.embedding_dim

    def measure(columns: slice, bytes_per_item: int) -> dict[str, Any]:
        part = replace(
            embedded,
            embeddings=np.ascontiguousarray(embedded.embeddings[:, columns]),
            gallery=None
            if embedded.gallery is None
            else np.ascontiguousarray(embedded.gallery[:, columns]),
        )
        return {
            **evaluate_on_ranks(ranks, evaluator, part).metrics,
            "bytes_per_item": bytes_per_item,
        }

    return {
        RAW_PIXELS: measure(slice(dim, None), both.embedding_dim - dim),  # a pixel is a byte
        UNTRAINED: measure(slice(dim), evaluator.bytes_per_item(dim)),
    }


class _NetworkAndPixels(nn.Module):
    """A network's embedding and the image's pixels, side by side, so that images are loaded once.

    The pixels of the network's input, of shape (C, H, W), are averaged over squares to at most
    1,024 numbers per image.
    """

    def __init__(self, network: EmbeddingModel, shape: torch.Size) -> None:
        super().__init__()
        channels, height, width = shape
        side = max(1, math.isqrt(_MOST_PIXELS // channels))
        fits = channels * height * width <= _MOST_PIXELS
        self.square = 1 if fits else -(-max(height, width) // side)
        self.network = network
        pixels = channels * max(1, height // self.square) * max(1, width // self.square)
        self.embedding_dim = network.embedding_dim + pixels

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, D + P) float32."""
        kernel = [min(self.square, size) for size in images_BCHW.shape[2:]]
        pixels_BP = nn.functional.avg_pool2d(images_BCHW.float(), kernel).flatten(1)
        return torch.cat([self.network(images_BCHW), pixels_BP], dim=1)

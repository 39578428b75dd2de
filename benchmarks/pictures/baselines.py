"""Measure a picture set without training: raw pixels, an untrained network, and ImageNet's
features.

    python benchmarks/pictures/baselines.py RECIPE ROOT

RECIPE is ``pretrained/units`` or ``pretrained/icons``, and ROOT is the folder that build.py wrote.
All rows use the recipe's preparation and test split. `pixels` subtracts the mean over the set from
the input. `untrained` and `ImageNet` use the backbone's pooled features with random and pretrained
weights; further layers are not used.
"""

from __future__ import annotations

import sys

import numpy as np
from rich.console import Console

from dml_core import registry
from dml_train.measure.evaluate import Embedded
from dml_train.recipe.loading import load_recipe
from dml_train.training.build import Experiment, build

METRICS = ("recall@1", "recall@2", "recall@4", "recall@8", "map@r", "r_precision")


def main(recipe: str, root: str) -> None:
    """Print a row per baseline."""
    console = Console(quiet=True)
    settings = {
        "dataset.root": root,
        "embedding.linear": False,
        "embedding.layer_norm": False,
        "embedding.dim": 1280,  # the features of EfficientNet-Lite0
        "training.device": "cpu",
    }
    experiment = build(load_recipe(recipe, settings), registry())
    test = experiment.dataset.test
    pixels = np.concatenate(
        [test.load(np.array([item])).flatten(1).numpy() for item in range(len(test))]
    )
    show("pixels", experiment, Embedded(pixels - pixels.mean(axis=0), test.labels))
    experiment.model.eval()
    show("ImageNet", experiment, experiment.embed_test(console))
    untrained = load_recipe(
        recipe, settings | {"backbone": {"name": "timm", "model": "tf_efficientnet_lite0"}}
    )
    experiment = build(untrained, registry())
    experiment.model.eval()
    show("untrained", experiment, experiment.embed_test(console))


def show(name: str, experiment: Experiment, embedded: Embedded) -> None:
    """Evaluate features and print the metrics."""
    measured = experiment.evaluator.evaluate(embedded.embeddings, embedded.labels)
    print(
        f"{name:10}" + "".join(f"  {metric} {measured[metric]:.4f}" for metric in METRICS),
        flush=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

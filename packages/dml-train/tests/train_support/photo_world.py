"""A folder of coloured images and a network trained on it for three steps, to test uses of trained
networks.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console

from dml_core import Registry
from dml_train.recipe.checking import parse
from dml_train.training.run import train


def write_photos(root: Path, classes: int = 6, each: int = 5, seed: int = 0) -> Path:
    """Write ``root/class-C/I.png``: noise around a colour per class, in different sizes."""
    random = np.random.default_rng(seed)
    for c in range(classes):
        (root / f"class-{c}").mkdir(parents=True)
        colour = random.integers(0, 256, 3)
        for i in range(each):
            noise = random.normal(scale=30, size=(20 + i, 24, 3))
            pixels = (colour + noise).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"class-{c}" / f"{i}.png")
    return root


def photo_document(root: Path) -> dict[str, Any]:
    """Return the recipe's document of three steps on a folder of images."""
    return {
        "training": {"steps": 3, "device": "cpu"},
        "dataset": {"name": "image-folder", "root": str(root), "resize": 18, "crop": 16},
        "backbone": {"name": "small-conv", "widths": [8, 8]},
        "embedding": {"dim": 12},
        "sampler": {"name": "class-balanced", "classes_per_batch": 2, "images_per_class": 2},
        "loss": {"name": "tiny"},
        "logging": {"loggers": []},
    }


def train_on(root: Path, out: Path, registry: Registry) -> Path:
    """Train for three steps; the network is hardly better than chance, and must always be equal."""
    recipe = parse(photo_document(root), registry)
    return train(recipe, out, registry=registry, console=Console(file=StringIO())).path

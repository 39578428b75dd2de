"""Data sets: what a recipe's ``[dataset]`` table can name, and how images become batches."""

from __future__ import annotations

from dml_core import Component
from dml_train.data.array_split import ArraySplit, Jitter
from dml_train.data.glyphs import Glyphs
from dml_train.data.image_folder import ImageFolder

__all__ = ["ArraySplit", "Glyphs", "ImageFolder", "Jitter", "components"]


def components() -> tuple[Component, ...]:
    """The data sets that this package provides."""
    return (
        Component(
            "glyphs",
            Glyphs,
            "the characters that matplotlib's fonts can draw, 32 × 32, half of the classes unseen; no download",
        ),
        Component(
            "image-folder",
            ImageFolder,
            "a folder of images, one folder a class, split into disjoint halves of classes",
        ),
    )

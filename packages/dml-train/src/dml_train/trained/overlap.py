"""Which of a user's images a run was trained on: metrics of those overestimate."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dml_core import DmlError, Registry, TrainingFilesFactory
from dml_train.recipe.tables import Recipe


def count_training_images(recipe: Recipe, registry: Registry, files: Iterable[Path]) -> int:
    """Count the files that a run's data set lists for training, held-out classes included.

    Args:
        recipe: the run's.
        registry: provides the data set.
        files: the user's images.

    Returns:
        Their number; 0 if the data set doesn't list its files (see `TrainingFilesFactory`), or is absent.
    """
    factory = registry.entry("datasets", recipe.dataset["name"]).component.factory
    if not isinstance(factory, TrainingFilesFactory):
        return 0
    options = {key: value for key, value in recipe.dataset.items() if key != "name"}
    real_folders: dict[Path, str] = {}  # files are many, and their folders few

    def real(file: Path) -> str:
        folder = file.parent
        if folder not in real_folders:
            real_folders[folder] = os.path.realpath(folder)
        return f"{real_folders[folder]}{os.sep}{file.name}"

    try:
        trained = {real(file) for file in factory.training_files(**options)}
    except (DmlError, OSError):  # the data set isn't on this machine
        return 0
    return sum(real(file) in trained for file in files)

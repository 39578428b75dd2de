"""Find images that should not be used to evaluate a run: training images, and near-copies of
training images.

Shapes: `T` test items, `N` training items of a block, `D` embedding dimension.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_core import (
    DmlError,
    FileBackedSplit,
    RangeEvaluator,
    Registry,
    Split,
    TrainingFilesFactory,
)
from dml_core import registry as installed
from dml_train.measure.embed import CHUNK_SIZE, embed, split_chunks
from dml_train.measure.evaluate import Embedded
from dml_train.progress import stage
from dml_train.recipe.tables import Recipe
from dml_train.training.run import reopen

THRESHOLD = 0.98
MOST = 1_000_000  # maximal number of pairs: nobody can read more
_BLOCK = 64 * CHUNK_SIZE  # number of training items in memory


class Leak(NamedTuple):
    """A test image that is similar to a training image."""

    similarity: float  # the cosine of the embeddings
    part: str  # the split of the test image: "test" or "gallery"
    # the file of the test image or, if the data set doesn't use files, the index in the split
    test: str
    test_class: str
    train: str  # like `test`, for the training image
    train_class: str


def find_leaks(
    run: str | Path,
    threshold: float = THRESHOLD,
    *,
    step: int | None = None,
    registry: Registry | None = None,
    console: Console | None = None,
) -> list[Leak]:
    """Find all pairs with ``cosine(test image, training image) ≥ threshold``, exactly; most similar
    first.

    This function compares all images of the test split and the gallery with all training images,
    including held-out classes. Training images are embedded block by block to limit memory. Raise
    DmlError if `run` isn't a run's folder, a checkpoint is missing or damaged, the threshold is out
    of range, or there are more than a million pairs.

    Args:
        threshold: -1 to 1. Scaled or recompressed copies are slightly below 1, depending on the
            network.
        run, step, registry, console: see `evaluate_run`; the registry must provide the evaluator
            ``"exact"``.
    """
    if not -1 <= threshold <= 1:
        raise DmlError(
            f"the threshold is {threshold}; expected a cosine from -1 to 1, such as {THRESHOLD}"
        )
    registry, console = registry or installed(), console or Console(quiet=True)
    folder, experiment = reopen(run, registry, step)
    evaluator = registry.build("evaluators", {"name": "exact"}, {"seed": 0})
    if not isinstance(evaluator, RangeEvaluator):
        raise DmlError(
            "the evaluator 'exact' can't find all items above a similarity; install dml-eval-rs"
        )
    if step is None and folder.is_finished and folder.embeddings().is_file():
        embedded = Embedded.read(folder)
    else:
        embedded = experiment.embed_test(console)
    train, dataset = experiment.dataset.train, experiment.dataset
    parts: dict[str, tuple[Split, npt.NDArray[Any]]] = {"test": (dataset.test, embedded.embeddings)}
    if dataset.gallery is not None and embedded.gallery is not None:
        parts["gallery"] = dataset.gallery, embedded.gallery
    for name, (split, rows) in parts.items():
        if len(split) != len(rows):
            raise DmlError(
                f"the split {name!r} contains {len(split):,} items now, but had {len(rows):,} when "
                "the run ended; restore the data of the run"
            )
    network, device, precision = experiment.evaluated_model, experiment.device, experiment.precision
    workers = experiment.recipe.training.workers
    leaks: list[Leak] = []
    with stage(console, "search training images", len(train)) as show:
        for items in split_chunks(np.arange(len(train)), _BLOCK):
            block_ND = embed(
                network, train, device=device, precision=precision, workers=workers, items=items
            )
            for name, (split, rows_TD) in parts.items():
                try:
                    offsets, places, similarities = evaluator.within(
                        rows_TD, block_ND, threshold, max_results=max(1, MOST - len(leaks))
                    )
                except (TypeError, ValueError) as error:
                    raise DmlError(
                        f"can't list more than {MOST:,} pairs: {error}. Increase the threshold, "
                        f"which is {threshold:g}"
                    ) from error
                tests = np.repeat(np.arange(len(rows_TD)), np.diff(offsets))
                leaks += [
                    Leak(
                        similarity,
                        name,
                        *_describe(split, test),
                        *_describe(train, int(items[place])),
                    )
                    for test, place, similarity in zip(
                        tests.tolist(), places, similarities.tolist()
                    )
                ]
            show(int(items[-1]) + 1, f"{len(leaks):,} pairs")
    return sorted(leaks, key=lambda leak: (-leak.similarity, *leak[1:]))


def _describe(split: Split, item: int) -> tuple[str, str]:
    """Return the file of an item, or otherwise the index, and the class."""
    name = str(split.files[item]) if isinstance(split, FileBackedSplit) else f"item {item}"
    return name, split.class_names[int(split.labels[item])]


def count_training_images(recipe: Recipe, registry: Registry, files: Iterable[Path]) -> int:
    """Count the files that a run's data set lists for training (`TrainingFilesFactory`), including
    held-out classes.
    """
    factory = registry.entry("datasets", recipe.dataset["name"]).component.factory
    if not isinstance(factory, TrainingFilesFactory):
        return 0
    options = {key: value for key, value in recipe.dataset.items() if key != "name"}
    # Only resolve folders, which are few, since resolving all files would be slow.
    resolve_folder = functools.cache(os.path.realpath)

    def resolve(file: Path) -> tuple[str, str]:
        return resolve_folder(file.parent), file.name

    try:
        trained = {resolve(file) for file in factory.training_files(**options)}
    except (DmlError, OSError):  # the data set isn't on this machine
        return 0
    return sum(resolve(file) in trained for file in files)

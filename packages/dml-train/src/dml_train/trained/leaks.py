"""Images that a run must not be measured on: near-copies of training images, and training images themselves.

Shapes: `T` test items, `N` training items of a block, `D` embedding dimension.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_core import DmlError, FileBackedSplit, RangeEvaluator, Registry, Split, TrainingFilesFactory
from dml_core import registry as installed
from dml_train.files import write_csv
from dml_train.measure.embed import CHUNK_SIZE, embed, split_chunks
from dml_train.measure.evaluate import Embedded
from dml_train.progress import stage
from dml_train.recipe.tables import Recipe
from dml_train.training.run import reopen

THRESHOLD = 0.98
MOST = 1_000_000  # pairs: nobody can read more
_BLOCK = 64 * CHUNK_SIZE  # training items in memory at a time


class Leak(NamedTuple):
    """A test image and a training image that are alike."""

    similarity: float  # the cosine of their embeddings
    part: str  # of the test image: "test" or "gallery"
    test: str  # its file; for a data set without files, its index in the split
    test_class: str
    train: str  # likewise
    train_class: str


def find_leaks(
    run: str | Path,
    threshold: float = THRESHOLD,
    *,
    step: int | None = None,
    registry: Registry | None = None,
    console: Console | None = None,
) -> list[Leak]:
    """Find all pairs with ``cosine(test image, training image) ≥ threshold``, exactly; most similar first.

    Searched are all images of the test split and the gallery, and all of the training half, held-out classes included.
    Training images are embedded block by block, and only a block's embeddings are in memory.

    Args:
        threshold: -1 to 1. Copies that were scaled or compressed again are a little below 1; how far depends on the
            network.
        run, step, registry, console: see `evaluate_run`; the registry must provide the evaluator ``"exact"``.

    Raises:
        DmlError: not a run's folder, a checkpoint that is missing or damaged, a threshold out of range, or more than a
            million pairs.
    """
    if not -1 <= threshold <= 1:
        raise DmlError(f"the threshold is {threshold}; expected a cosine from -1 to 1, such as {THRESHOLD}")
    registry, console = registry or installed(), console or Console(quiet=True)
    folder, experiment = reopen(run, registry, step)
    evaluator = registry.build("evaluators", {"name": "exact"}, {"seed": 0})
    if not isinstance(evaluator, RangeEvaluator):
        raise DmlError("the evaluator 'exact' doesn't find all items above a similarity; install dml-eval-rs")
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
                f"the data set's part {name!r} has {len(split):,} items now and had {len(rows):,} when the run ended; "
                "evaluate the run's own data"
            )
    network, device, precision = experiment.evaluated_model, experiment.device, experiment.precision
    workers = experiment.recipe.training.workers
    leaks: list[Leak] = []
    with stage(console, "search training images", len(train)) as show:
        for items in split_chunks(np.arange(len(train)), _BLOCK):
            block_ND = embed(network, train, device=device, precision=precision, workers=workers, items=items)
            for name, (split, rows_TD) in parts.items():
                try:
                    offsets, places, similarities = evaluator.within(
                        rows_TD, block_ND, threshold, max_results=max(1, MOST - len(leaks))
                    )
                except (TypeError, ValueError) as error:
                    raise DmlError(
                        f"can't list the pairs: {error}. At most {MOST:,} are listed; raise the threshold, which is "
                        f"{threshold:g}"
                    ) from error
                tests = np.repeat(np.arange(len(rows_TD)), np.diff(offsets))
                leaks += [
                    Leak(similarity, name, *_describe(split, test), *_describe(train, int(items[place])))
                    for test, place, similarity in zip(tests.tolist(), places, similarities.tolist())
                ]
            show(int(items[-1]) + 1, f"{len(leaks):,} pairs")
    return sorted(leaks, key=lambda leak: (-leak.similarity, *leak[1:]))


def write_leaks(leaks: Sequence[Leak], path: Path) -> None:
    """Write leaks as a CSV file in UTF-8 with a line of column names; a path that isn't UTF-8 keeps its bytes."""
    write_csv(path, Leak._fields, leaks)


def _describe(split: Split, item: int) -> tuple[str, str]:
    """Return an item's file, or its index, and its class."""
    name = str(split.files[item]) if isinstance(split, FileBackedSplit) else f"item {item}"
    return name, split.class_names[int(split.labels[item])]


def count_training_images(recipe: Recipe, registry: Registry, files: Iterable[Path]) -> int:
    """Count the files that a run's data set lists for training (`TrainingFilesFactory`), held-out classes included."""
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

"""Measure a run on a folder of other images, with one subfolder per class.

Shapes: `N` images, `D` embedding dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dml_core import DmlError, Evaluation, Registry
from dml_core import registry as installed
from dml_train.measure.evaluate import Embedded
from dml_train.progress import stage
from dml_train.trained.model import TrainedModel, open_model
from dml_train.trained.overlap import count_training_images
from dml_train.trained.plan import EmbeddingPlan, ThisProcess
from dml_train.trained.splits import choose_evaluator, evaluate_embedded
from dml_train.trained.stored_images import open_images


@dataclass(frozen=True, slots=True)
class EmbeddedFolder:
    """The embedded images of a folder; images in the same subfolder match.

    Args:
        embedded: (N, D) embeddings and (N,) labels.
        class_names: by label.
        skipped: the reasons of images that can't be decoded.
        trained: number of images that are training images of the run.
    """

    embedded: Embedded
    class_names: Sequence[str]
    skipped: Sequence[str]
    trained: int


def embed_classes(
    model: TrainedModel, folder: Path, *, skip: bool, registry: Registry, console: Console
) -> EmbeddedFolder:
    """Embed ``FOLDER/CLASS/**`` with a run's weights.

    Args:
        model: embeds the images.
        folder: holds a folder of images for each class.
        skip: whether to omit images that can't be decoded; otherwise they are an error.
        registry: provides the run's data set, which names its training images.
        console: shows progress.

    Raises:
        DmlError: no images, an image in no subfolder, no two images of one class, or an image that can't be decoded.
    """
    images = open_images(folder)
    _check_classes(folder, images.labels(images.names)[0])
    plan = EmbeddingPlan(model, images)
    rows, done = [], 0
    bad: dict[int, str] = {}
    engine = ThisProcess(model.recipe.training.workers)
    with (
        stage(console, "embed", len(images.names)) as show,
        closing(engine(plan, range(len(plan)), skip=skip)) as chunks,
    ):
        for chunk in chunks:
            items = plan.items(chunk.chunk)
            rows.append(chunk.rows)
            bad |= {items[image.position]: image.reason for image in chunk.bad}
            done += len(items)
            show(done, "")
    kept = [name for item, name in enumerate(images.names) if item not in bad]
    labels, described = images.labels(kept)
    _check_classes(folder, labels)
    return EmbeddedFolder(
        Embedded(np.concatenate(rows), labels),
        described["classes"],
        [*bad.values()],
        count_training_images(model.recipe, registry, (folder / name for name in kept)),
    )


def _check_classes(folder: Path, labels: Any) -> None:
    sizes = np.bincount(labels)
    if sizes.max(initial=0) < 2:
        raise DmlError(
            f"{folder} holds {len(labels):,} images of {len(sizes):,} classes, one of each: no query would have a "
            "match; expected FOLDER/CLASS/IMAGE with at least two images of some class"
        )


def evaluate_folder(
    run: str | Path,
    folder: str | Path,
    *,
    skip: bool = False,
    evaluator: str | None = None,
    options: Mapping[str, Any] | None = None,
    levels: Sequence[str] = (),
    prefix: int | None = None,
    step: int | None = None,
    registry: Registry | None = None,
    console: Console | None = None,
) -> Evaluation:
    """Evaluate a run on a folder of other images: each is a query, and searches all others.

    Args:
        run: the run's folder.
        folder: ``FOLDER/CLASS/IMAGE``; images of one class match one another. Images that trained the run overestimate.
        skip: whether to omit images that can't be decoded; otherwise they are an error.
        evaluator, options, levels, prefix, step: see `evaluate_run`.
        registry: provides the components; default: those of all installed plugins.
        console: shows progress; default: none.

    Raises:
        DmlError: as `evaluate_run`; no images, an image in no subfolder, no two images of one class, or an image that
            can't be decoded.
    """
    registry = registry or installed()
    model = open_model(run, registry, step=step)
    measure = choose_evaluator(model.recipe, evaluator, options, registry)
    found = embed_classes(
        model, Path(folder), skip=skip, registry=registry, console=console or Console(quiet=True)
    )
    return evaluate_embedded(measure, found.embedded, model.recipe, levels, prefix)

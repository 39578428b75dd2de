"""Evaluate a run on its splits or on other images, or evaluate arrays.

Shapes: `N` items, `Q` queries, `G` gallery, `D` embedding dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_core import DmlError, Evaluation, Evaluator, Labels, Registry, Relevance
from dml_core import registry as installed
from dml_train.measure.evaluate import (
    Embedded,
    evaluate,
    evaluate_arrays,
    make_evaluator,
    select_levels,
    select_prefix,
)
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.trained.images import SplitName, list_split, open_images
from dml_train.trained.model import TrainedModel, open_model
from dml_train.trained.plan import EmbeddedImages, EmbeddingPlan, embed_in_memory
from dml_train.training.run import read_recipe, reopen


def embed_split(
    run: str | Path,
    split: SplitName = "test",
    *,
    step: int | None = None,
    registry: Registry | None = None,
    console: Console | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Embed a split of the run's data set: embeddings (N, D) float32, and labels (N,) int64.

    Args:
        split: ``"train"``, ``"test"``, or ``"gallery"``.
        run, step, registry, console: see `evaluate_run`.

    Raises:
        DmlError: not a run's folder, a checkpoint that is missing or damaged, or a data set without a separate gallery.
    """
    model = open_model(run, registry, step=step)
    images = list_split(model, split, registry)
    workers = model.recipe.training.workers
    found = embed_in_memory(EmbeddingPlan(model, images), workers=workers, console=console)
    return found.rows, images.labels(found.paths)[0]


def evaluate_run(
    run: str | Path,
    folder: str | Path | None = None,
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
    """Evaluate a run's test split, for instance with other options than the recipe's, or the run on other images.

    The embeddings of a finished run's test split are read from its folder; otherwise images are embedded.

    Args:
        run: the run's folder.
        folder: other images, ``FOLDER/CLASS/IMAGE``: each is a query and searches all others, and images of one class
            match. Metrics of images that trained the run are too high.
        skip: whether to omit images of `folder` that can't be decoded; otherwise they are an error.
        evaluator: a name that ``dml plugins`` lists; default: the run's.
        options: of the evaluator, over those of the recipe if the evaluator is the same:
            ``{"metrics": ["recall@1", "recall@5"]}``.
        levels: measure only these levels of a run with several, ``["inception_4e"]``; default: the whole embedding.
        prefix: measure only the first `prefix` numbers of these; default: all.
        step: embed with the weights of this step's checkpoint; default: those that the run is evaluated by.
        registry: provides the components; default: all installed ones.
        console: shows progress; default: none.

    Raises:
        DmlError: not a run's folder, a damaged result file, a checkpoint that is missing or damaged, an evaluator,
            option or level that doesn't exist, or a prefix longer than the embedding; of `folder`: no images, an image
            in no subfolder, no two images of one class, or an image that can't be decoded.
    """
    registry = registry or installed()
    recipe, measure = choose_evaluator(run, evaluator, options, registry)
    if folder is None:
        embedded = embed_test(run, step, registry, console)
    else:
        model = open_model(run, registry, step=step)
        embedded, _ = embed_classes(model, Path(folder), skip=skip, console=console)
    return evaluate_embedded(measure, embedded, recipe, levels, prefix)


def evaluate_embeddings(
    embeddings: npt.NDArray[Any],
    labels: npt.NDArray[Any] | Labels | Relevance,
    gallery: npt.NDArray[Any] | None = None,
    gallery_labels: npt.NDArray[Any] | Labels | None = None,
    *,
    evaluator: str = "exact",
    options: Mapping[str, Any] | None = None,
    registry: Registry | None = None,
) -> Evaluation:
    """Evaluate embeddings with any installed evaluator.

    Args:
        embeddings: (Q, D) floating; a memory map is not read at once.
        labels: (Q,); or `dml_core.Labels`, for items with groups or junk; or `dml_core.Relevance`, which lists matches.
        gallery: (G, D); default: the queries themselves, each of which excludes itself.
        gallery_labels: (G,), or `dml_core.Labels`; with `gallery`, unless `labels` is a `Relevance`.
        evaluator, options, registry: see `evaluate_run`.

    Raises:
        DmlError: an evaluator or option that doesn't exist, or arrays that the evaluator refuses.
    """
    if (gallery is None) != (gallery_labels is None) and not isinstance(labels, Relevance):
        raise DmlError("gallery and gallery_labels belong together; only one of them was given")
    measure = make_evaluator({"name": evaluator, **(options or {})}, registry or installed(), seed=0)
    return evaluate_arrays(measure, embeddings, labels, gallery, gallery_labels)


def embed_test(run: str | Path, step: int | None, registry: Registry, console: Console | None) -> Embedded:
    """Return the embeddings that `evaluate_run` evaluates, and raise as it does."""
    folder = RunFolder.open(Path(run))
    if step is None and folder.is_finished and folder.embeddings().is_file():
        return Embedded.read(folder)
    return reopen(run, registry, step)[1].embed_test(console or Console(quiet=True))


def choose_evaluator(
    run: str | Path, evaluator: str | None, options: Mapping[str, Any] | None, registry: Registry
) -> tuple[Recipe, Evaluator]:
    """Return a run's recipe, and its evaluator or another one; options override the recipe's if it is the same."""
    recipe = read_recipe(RunFolder.open(Path(run)), registry)
    same = evaluator in (None, recipe.evaluation.name)
    table = recipe.evaluation.component() if same else {"name": evaluator}
    return recipe, make_evaluator({**table, **(options or {})}, registry, recipe.training.seed)


def evaluate_embedded(
    evaluator: Evaluator, embedded: Embedded, recipe: Recipe, levels: Sequence[str], prefix: int | None
) -> Evaluation:
    """Evaluate a run's embeddings, or some of their levels or first numbers."""
    chosen = select_levels(embedded, recipe, levels) if levels else embedded
    return evaluate(evaluator, chosen if prefix is None else select_prefix(chosen, prefix))


def embed_classes(
    model: TrainedModel, folder: Path, *, skip: bool, console: Console | None
) -> tuple[Embedded, EmbeddedImages]:
    """Embed ``FOLDER/CLASS/**`` with a run's weights; images in the same subfolder match.

    See `evaluate_run` for arguments and errors.
    """
    images = open_images(folder)

    def label(names: Sequence[str]) -> npt.NDArray[np.int64]:
        labels, _ = images.labels(names)
        sizes = np.bincount(labels)
        if sizes.max(initial=0) < 2:
            raise DmlError(
                f"{folder} holds {len(labels):,} images of {len(sizes):,} classes, one of each: no query would have a "
                "match; expected FOLDER/CLASS/IMAGE with at least two images of some class"
            )
        return labels

    label(images.names)  # or fail before the work
    workers = model.recipe.training.workers
    found = embed_in_memory(EmbeddingPlan(model, images), skip=skip, workers=workers, console=console)
    return Embedded(found.rows, label(found.paths)), found

"""Evaluate a run on the test split or on other images, or evaluate arrays.

Shapes: `N` items, `Q` queries, `G` gallery, `D` embedding dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_core import DmlError, Evaluation, Evaluator, Labels, Registry, Relevance
from dml_core import registry as installed
from dml_train.measure.evaluate import Embedded, evaluate_arrays, evaluate_selected, make_evaluator
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.trained.images import SplitName, list_split, open_images
from dml_train.trained.model import TrainedModel, open_model
from dml_train.trained.plan import EmbeddingPlan, FolderEmbedding, embed_in_memory
from dml_train.trained.whitening import learn_whitening
from dml_train.trained.whitening import whiten as whiten_rows
from dml_train.training.run import read_recipe, reopen


def embed_split(
    run: str | Path,
    split: SplitName = "test",
    *,
    step: int | None = None,
    registry: Registry | None = None,
    console: Console | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Embed a split of the run's data set, and return embeddings (N, D) float32 and labels (N,)
    int64.

    See `evaluate_run` for the arguments. Raise DmlError if `run` isn't a run's folder, a checkpoint
    is missing or damaged, or the data set lacks the split.
    """
    model = open_model(run, registry, step=step)
    images = list_split(model, split, registry)
    workers = model.recipe.training.workers
    rows, done = embed_in_memory(EmbeddingPlan(model, images), workers=workers, console=console)
    return rows, images.labels(done.paths)[0]


def evaluate_run(
    run: str | Path,
    folder: str | Path | None = None,
    *,
    skip: bool = False,
    evaluator: str | None = None,
    options: Mapping[str, Any] | None = None,
    levels: Sequence[str] = (),
    prefix: int | None = None,
    flip: bool = False,
    whiten: int | None = None,
    expand: Mapping[str, Any] | None = None,
    rerank: Mapping[str, Any] | None = None,
    step: int | None = None,
    registry: Registry | None = None,
    console: Console | None = None,
) -> Evaluation:
    """Evaluate a run on the test split, for example with options that differ from the recipe, or on
    other images.

    If the run is finished, the embeddings of the test split are read from the run's folder. Raise
    DmlError if `run` isn't a run's folder; a result file is damaged; a checkpoint is missing or
    damaged; an evaluator, option or level doesn't exist; `prefix` exceeds the dimension; or
    `folder` lacks images, has an image that can't be decoded or is not in a subfolder, or has only
    classes with a single image.

    Args:
        run: the run's folder.
        folder: other images, ``FOLDER/CLASS/IMAGE``. All images are queries that search all others;
            images of the same class match. If the run was trained on these images, metrics are too
            high.
        skip: whether to omit images in `folder` that can't be decoded, instead of raising an error.
        evaluator: a name that ``dml plugins`` lists; default: the run's evaluator.
        options: options of the evaluator, for example ``{"metrics": ["recall@1", "recall@5"]}``.
            They override the options in the recipe when the run's evaluator is used.
        levels: evaluate only these levels of the embedding, for example ``["inception_4e"]``; by
            default, all are used.
        prefix: evaluate only the first `prefix` dimensions of these levels; default: all.
        flip: whether to average the embeddings of an image and the mirror image.
        whiten: learn a PCA whitening to this dimension from the training images, and store it; see
            `learn_whitening`.
        expand: expand the queries, with these options of `dml_eval_rs.expand_queries`, for example
            ``{"k": 5}``.
        rerank: re-rank the results, with these options of `dml_eval_rs.rerank`, for example
            ``{"k1": 10}``.
        step, registry: see `open_model`.
        console: shows progress; default: none.
    """
    registry = registry or installed()
    recipe, measure = choose_evaluator(run, evaluator, options, registry)
    if folder is None:
        embedded = embed_test(run, step, registry, console, flip=flip)
    else:
        model = open_model(run, registry, step=step, whitened=False)
        model.network.flips = flip
        embedded, _ = embed_classes(model, Path(folder), skip=skip, console=console)
    if whiten is not None:
        embedded = whiten_embedded(embedded, run, whiten, levels, step, registry, console)
    return evaluate_selected(measure, embedded, recipe, levels, prefix, expand, rerank)


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

    Raise DmlError if an evaluator or option doesn't exist, or the evaluator rejects the arrays.

    Args:
        embeddings: (Q, D) floating. A memory map isn't read as a whole.
        labels: (Q,); or `dml_core.Labels` for items with groups or junk; or `dml_core.Relevance`,
            which lists matches.
        gallery: (G, D); default: the queries, where queries exclude themselves.
        gallery_labels: (G,), or `dml_core.Labels`. Must be given with `gallery`, unless `labels` is
            a `Relevance`.
        evaluator, options, registry: see `evaluate_run`.
    """
    if (gallery is None) != (gallery_labels is None) and not isinstance(labels, Relevance):
        raise DmlError("gallery and gallery_labels must be given together, but only one was given")
    measure = make_evaluator(
        {"name": evaluator, **(options or {})}, registry or installed(), seed=0
    )
    return evaluate_arrays(measure, embeddings, labels, gallery, gallery_labels)


def embed_test(
    run: str | Path,
    step: int | None,
    registry: Registry,
    console: Console | None,
    *,
    flip: bool = False,
) -> Embedded:
    """Return the embeddings of a run's test split; see `evaluate_run` for the errors."""
    folder = RunFolder.open(Path(run))
    if step is None and not flip and folder.is_finished and folder.embeddings().is_file():
        return Embedded.read(folder)
    experiment = reopen(run, registry, step)[1]
    experiment.evaluated_model.flips = flip
    return experiment.embed_test(console or Console(quiet=True))


def whiten_embedded(
    embedded: Embedded,
    run: str | Path,
    dim: int,
    levels: Sequence[str],
    step: int | None,
    registry: Registry,
    console: Console | None,
) -> Embedded:
    """Learn a run's whitening, store it, and apply it to embeddings; see `evaluate_run` for the
    arguments.
    """
    if levels:
        raise DmlError("whiten needs all levels of the embedding", arguments=("level", "whiten"))
    options: Any = {"step": step, "registry": registry, "console": console or Console(quiet=True)}
    whitening = learn_whitening(run, dim, **options)
    gallery = embedded.gallery
    return replace(
        embedded,
        embeddings=whiten_rows(whitening, embedded.embeddings),
        gallery=None if gallery is None else whiten_rows(whitening, gallery),
    )


def choose_evaluator(
    run: str | Path, evaluator: str | None, options: Mapping[str, Any] | None, registry: Registry
) -> tuple[Recipe, Evaluator]:
    """Return a run's recipe and the evaluator for `evaluate_run`."""
    recipe = read_recipe(RunFolder.open(Path(run)), registry)
    same = evaluator in (None, recipe.evaluation.name)
    table = recipe.evaluation.component() if same else {"name": evaluator}
    return recipe, make_evaluator({**table, **(options or {})}, registry, recipe.training.seed)


def embed_classes(
    model: TrainedModel, folder: Path, *, skip: bool, console: Console | None
) -> tuple[Embedded, FolderEmbedding]:
    """Embed the images of a folder for `evaluate_run`, which documents the arguments and errors."""
    images = open_images(folder)

    def label(names: Sequence[str]) -> npt.NDArray[np.int64]:
        labels, _ = images.labels(names)
        sizes = np.bincount(labels)
        if sizes.max(initial=0) < 2:
            raise DmlError(
                f"{folder} contains {len(sizes):,} classes of a single image, so that queries "
                "can't be matched; expected FOLDER/CLASS/IMAGE with at least two images in some "
                "class"
            )
        return labels

    label(images.names)  # fail before the work if queries can't be matched
    workers = model.recipe.training.workers
    rows, done = embed_in_memory(
        EmbeddingPlan(model, images), skip=skip, workers=workers, console=console
    )
    return Embedded(rows, label(done.paths)), done

"""The splits of a run's own data set, embedded and evaluated with the run's weights.

Shapes: `N` items, `Q` queries, `G` gallery, `D` embedding dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_core import Dataset, DmlError, Evaluation, Evaluator, Labels, Registry, Relevance, Split
from dml_core import registry as installed
from dml_train.measure.evaluate import Embedded, evaluate, evaluate_arrays, make_evaluator
from dml_train.measure.levels import select_levels
from dml_train.measure.prefixes import select_prefix
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.training.run import read_recipe, reopen

SplitName = Literal["train", "test", "gallery"]


def embed_split(
    run: str | Path,
    split: SplitName = "test",
    *,
    step: int | None = None,
    registry: Registry | None = None,
    console: Console | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Embed a split of the run's data set with the run's weights.

    Args:
        run: the run's folder.
        split: ``"train"``, ``"test"``, or ``"gallery"``.
        step: use the weights of this step's checkpoint; default: those that the run is evaluated by.
        registry: provides the components; default: those of all installed plugins.
        console: shows progress; default: none.

    Returns:
        Embeddings (N, D) float32, and labels (N,) int64.

    Raises:
        DmlError: not a run's folder, a checkpoint that is missing or damaged, or a data set without a gallery of its
            own.
    """
    _, experiment = reopen(Path(run), registry, step)
    part = find_split(experiment.dataset, split, experiment.recipe)
    return experiment.embed(part, console or Console(quiet=True)), part.labels


def find_split(dataset: Dataset, name: SplitName, recipe: Recipe) -> Split:
    """Return a split of a recipe's data set.

    Raises:
        DmlError: if the data set has no gallery of its own.
    """
    part = {"train": dataset.train, "test": dataset.test, "gallery": dataset.gallery}[name]
    if part is None:
        raise DmlError(
            f"the data set {recipe.dataset['name']!r} has no separate gallery: "
            "its test split is queries and gallery"
        )
    return part


def evaluate_embedded(
    evaluator: Evaluator, embedded: Embedded, recipe: Recipe, levels: Sequence[str], prefix: int | None
) -> Evaluation:
    """Evaluate a run's embeddings, or some of their levels or first numbers."""
    chosen = select_levels(embedded, recipe, levels) if levels else embedded
    return evaluate(evaluator, chosen if prefix is None else select_prefix(chosen, prefix))


def evaluate_run(
    run: str | Path,
    *,
    evaluator: str | None = None,
    options: Mapping[str, Any] | None = None,
    levels: Sequence[str] = (),
    prefix: int | None = None,
    step: int | None = None,
    registry: Registry | None = None,
    console: Console | None = None,
) -> Evaluation:
    """Evaluate a run's test split, for instance with other options than the recipe's.

    The embeddings of a finished run are read from its folder; those of an unfinished one are computed.

    Args:
        run: the run's folder.
        evaluator: a name that ``dml plugins`` lists; default: the run's.
        options: of the evaluator, over those of the recipe if the evaluator is the same:
            ``{"metrics": ["recall@1", "recall@5"]}``.
        levels: of a run with several levels, those to measure: ``["inception_4e"]``; default: all of its embedding.
        prefix: measure the first so many numbers of these; default: all.
        step: embed with the weights of this step's checkpoint; default: those that the run is evaluated by.
        registry: provides the components; default: those of all installed plugins.
        console: shows progress; default: none.

    Raises:
        DmlError: not a run's folder, a damaged result file, a checkpoint that is missing or damaged, an evaluator,
            option or level that doesn't exist, or a prefix longer than the embedding.
    """
    registry = registry or installed()
    folder = RunFolder.open(Path(run))
    recipe = read_recipe(folder, registry)
    measure = choose_evaluator(recipe, evaluator, options, registry)
    if step is None and folder.is_finished and folder.embeddings().is_file():
        embedded = Embedded.read(folder)
    else:
        embedded = reopen(folder.path, registry, step)[1].embed_test(console or Console(quiet=True))
    return evaluate_embedded(measure, embedded, recipe, levels, prefix)


def choose_evaluator(
    recipe: Recipe, evaluator: str | None, options: Mapping[str, Any] | None, registry: Registry
) -> Evaluator:
    """Build the evaluator of a run, or another one; options override the recipe's if it is the same.

    Raises:
        DmlError: an evaluator or option that doesn't exist.
    """
    table = (
        recipe.evaluation.component() if evaluator in (None, recipe.evaluation.name) else {"name": evaluator}
    )
    return make_evaluator({**table, **(options or {})}, registry, recipe.training.seed)


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
        evaluator: a name that ``dml plugins`` lists.
        options: of the evaluator: ``{"metrics": ["recall@1", "recall@5"]}``.
        registry: provides the components; default: those of all installed plugins.

    Raises:
        DmlError: an evaluator or option that doesn't exist, or arrays that the evaluator refuses.
    """
    if (gallery is None) != (gallery_labels is None) and not isinstance(labels, Relevance):
        raise DmlError("gallery and gallery_labels belong together; only one of them was given")
    measure = make_evaluator({"name": evaluator, **(options or {})}, registry or installed(), seed=0)
    return evaluate_arrays(measure, embeddings, labels, gallery, gallery_labels)

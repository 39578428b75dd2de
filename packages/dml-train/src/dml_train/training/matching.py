"""Checks, before training, of a data set's groups and lists of matches, and of the evaluator that takes them.

Shapes: `Q` queries, `G` gallery, `M` listed pairs of a query and an item.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dml_core import (
    Dataset,
    DmlError,
    Evaluator,
    Registry,
    RelatedDataset,
    Relation,
    Split,
    takes_relations,
)
from dml_train.measure.embed import align_labels, groups_of
from dml_train.measure.evaluate import Embedded, evaluate
from dml_train.measure.matching import Matching
from dml_train.recipe.tables import Recipe


def check_matching(recipe: Recipe, registry: Registry, dataset: Dataset, validation: Split | None) -> None:
    """Check that the evaluator takes the data set's groups and lists, and that some query keeps a match.

    Args:
        recipe: the run's. Its evaluator measures the test split, unless ``evaluation.test`` is false, and the held-out
            classes.
        registry: provides the evaluator.
        dataset: all parts.
        validation: the held-out classes.

    Raises:
        DmlError: if it doesn't; or for groups or lists that don't fit the splits.
    """
    name = recipe.dataset["name"]
    splits: dict[str, tuple[Split, Split | None]] = {}
    relation = Relation()
    if recipe.evaluation.test:
        splits["the test split"] = dataset.test, dataset.gallery
        relation = dataset.relation if isinstance(dataset, RelatedDataset) else relation
    if validation is not None:
        splits["the held-out classes"] = validation, None
    grouped = [part for part, sides in splits.items() if any(groups_of(side) is not None for side in sides)]
    lists = [kind for kind in ("relevant", "ignored") if getattr(relation, kind) is not None]
    if not (grouped or lists):
        return
    # The rehearsal has fewer items than a recipe may ask clusters for.
    table = {key: value for key, value in recipe.evaluation.component().items() if key != "n_clusters"}
    evaluator: Evaluator = registry.build("evaluators", table, {"seed": recipe.training.seed})
    if not takes_relations(evaluator):
        given = " and ".join([*(["groups"] if grouped else []), *(f"relation.{kind}" for kind in lists)])
        raise DmlError(
            f"the data set {name!r} has {given}, which the evaluator {recipe.evaluation.name!r} doesn't take; expected "
            "one that does, such as evaluation.name = 'exact'"
        )
    for part in grouped:
        if relation.relevant is not None:
            raise DmlError(
                f"the data set {name!r} has groups and relation.relevant, which replaces labels and groups; expected "
                "one of them"
            )
        _check_groups(name, part, *splits[part])
    items = len(dataset.test if dataset.gallery is None else dataset.gallery)
    for kind in lists:
        _check_lists(
            f"relation.{kind} of the data set {name!r}", getattr(relation, kind), len(dataset.test), items
        )
    _rehearse(evaluator, bool(grouped), relation)


def _check_groups(name: str, part: str, queries: Split, gallery: Split | None) -> None:
    """Check groups against their split, and that some match is of another group than its query."""
    sides = [queries] if gallery is None else [queries, gallery]
    groups = [groups_of(side) for side in sides]
    for side, group in zip(sides, groups):
        if group is None:
            raise DmlError(
                f"only one of the test split and the gallery of {name!r} has groups; expected both, or neither"
            )
        if group.shape != (len(side),) or group.dtype.kind not in "iuU":
            raise DmlError(
                f"the groups of {part} of {name!r} have shape {group.shape} and dtype {group.dtype}; expected "
                f"({len(side)},) integers or strings"
            )
    kinds = {group.dtype.kind == "U" for group in groups if group is not None}
    if len(kinds) > 1:
        raise DmlError(f"the groups of one side of {part} of {name!r} are integers, and of the other strings")
    embedded = Embedded(
        np.empty((len(queries), 0)),
        queries.labels,
        None if gallery is None else np.empty((len(gallery), 0)),
        None if gallery is None else align_labels(gallery, queries),
        groups[0],
        None if gallery is None else groups[1],
    )
    if not Matching(embedded).matched().any():
        raise DmlError(
            f"every match of {part} of {name!r} has its query's group, and so is left out; expected classes with items "
            "of several groups"
        )


def _check_lists(name: str, lists: tuple[npt.NDArray[Any], ...], queries: int, items: int) -> None:
    """Check that lists have an offset for each query and name gallery items."""
    arrays = [np.asarray(array) for array in lists]
    if len(arrays) not in (2, 3) or any(array.ndim != 1 for array in arrays):
        raise DmlError(f"{name} isn't a pair of one-dimensional arrays, offsets and indices")
    offsets, indices = arrays[:2]
    if offsets.dtype.kind not in "iu" or indices.dtype.kind not in "iu":
        raise DmlError(f"{name} has dtypes {offsets.dtype} and {indices.dtype}; expected integers")
    if len(offsets) != queries + 1 or offsets[0] != 0 or offsets[-1] != len(indices):
        raise DmlError(
            f"{name} has {len(offsets)} offsets for {queries:,} queries, and {len(indices):,} indices; expected "
            f"{queries + 1:,} offsets from 0 to the number of indices"
        )
    if (np.diff(offsets.astype(np.int64)) < 0).any():
        raise DmlError(f"{name} has offsets that fall; expected ascending ones")
    if len(indices) and not 0 <= indices.min() <= indices.max() < items:
        raise DmlError(
            f"{name} has indices from {indices.min()} to {indices.max()}; expected 0 to {items - 1}, items of the "
            "gallery"
        )


def _rehearse(evaluator: Evaluator, grouped: bool, relation: Relation) -> None:
    """Evaluate four items, which refuses options that don't go with groups or lists.

    Raises:
        DmlError: if the evaluator refuses them.
    """
    rows, labels = np.eye(4, dtype=np.float32), np.zeros(4, np.int64)
    if grouped:
        evaluate(evaluator, Embedded(rows, labels, groups=np.array([0, 0, 1, 1])))
    offsets, nobody = np.arange(5), np.zeros(5, np.int64)
    relevant = None if relation.relevant is None else (offsets, np.array([1, 2, 3, 0]))
    ignored = None if relation.ignored is None else (nobody, np.zeros(0, np.int64))
    if relevant is not None or ignored is not None:
        evaluate(evaluator, Embedded(rows, labels, relation=Relation(relevant=relevant, ignored=ignored)))

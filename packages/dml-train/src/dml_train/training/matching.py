"""Checks, before training, of who matches whom in a data set, and of the evaluator that measures it."""

from __future__ import annotations

import numpy as np

from dml_core import (
    Dataset,
    DmlError,
    Evaluator,
    Labels,
    Matching,
    Registry,
    RelatedDataset,
    Relevance,
    Split,
    takes_matches,
)
from dml_train.measure.embed import groups_of, match_sides
from dml_train.measure.evaluate import Embedded, evaluate, make_evaluator
from dml_train.recipe.tables import Recipe

_ITEMS = 8  # of the rehearsal, in two classes


def check_matching(recipe: Recipe, registry: Registry, dataset: Dataset, validation: Split | None) -> None:
    """Check a data set's groups and lists of items, that some query keeps a match, and that the evaluator takes them.

    Args:
        recipe: the run's. Its evaluator measures the test split, unless ``evaluation.test`` is false, and the held-out
            classes.
        registry: provides the evaluator.
        dataset: all parts.
        validation: the held-out classes.

    Raises:
        DmlError: if it doesn't; or for groups or lists that don't fit the splits.
    """
    splits: dict[str, tuple[Split, Split | None, Labels | Relevance | None]] = {}
    if recipe.evaluation.test:
        matches = dataset.matches if isinstance(dataset, RelatedDataset) else None
        splits["the test split"] = dataset.test, dataset.gallery, matches
    if validation is not None:
        splits["the held-out classes"] = validation, None, None
    for part, sides in splits.items():
        try:
            stated = _check_part(*sides)
        except (TypeError, ValueError) as error:
            raise DmlError(f"{part} of the data set {recipe.dataset['name']!r}: {error}") from error
        if stated is not None:
            _rehearse(recipe, registry, stated)


def _check_part(
    queries: Split, gallery: Split | None, matches: Labels | Relevance | None
) -> Labels | Relevance | None:
    """Return the queries' side of who matches whom, checked; None where labels alone tell.

    Raises:
        TypeError, ValueError: if it doesn't fit the splits, or no query has a match.
    """
    groups = groups_of(queries)
    if isinstance(matches, Relevance) and (groups is not None or groups_of(gallery) is not None):
        raise ValueError("the splits have groups, and matches is a Relevance; expected one of them")
    if isinstance(matches, Labels) and not (
        np.array_equal(matches.ids, queries.labels)
        and (groups is matches.groups is None or np.array_equal(np.array(groups), np.array(matches.groups)))
    ):
        raise ValueError("matches has other labels or groups than the split; expected the same")
    if not isinstance(matches, Labels | Relevance | None):
        raise TypeError(f"matches is a {type(matches).__name__}; expected Labels or Relevance")
    stated, items = match_sides(queries, gallery, matches)
    if stated is None:
        return None
    if len(stated) != len(queries):
        raise ValueError(f"matches is of {len(stated):,} queries; expected {len(queries):,}")
    if not Matching(stated, items, None if gallery is None else len(gallery)).has_match().any():
        raise ValueError(
            "the rankings of all queries exclude their matches, or there are none; expected classes with items of "
            "several groups, and lists that leave a match"
        )
    return stated


def _rehearse(recipe: Recipe, registry: Registry, matches: Labels | Relevance) -> None:
    """Evaluate a few items with such matches, which refuses options that don't go with them.

    Raises:
        DmlError: if the evaluator takes labels alone, or refuses an option.
    """
    # A recipe may ask for more clusters than these items.
    table = {key: value for key, value in recipe.evaluation.component().items() if key != "n_clusters"}
    evaluator: Evaluator = make_evaluator(table, registry, recipe.training.seed)
    if not takes_matches(evaluator):
        raise DmlError(
            f"the data set {recipe.dataset['name']!r} has groups or lists of items, which the evaluator "
            f"{recipe.evaluation.name!r} doesn't take; expected one that does, such as evaluation.name = 'exact'"
        )
    items = np.arange(_ITEMS)
    labels = items // (_ITEMS // 2)
    ignored = None if matches.ignored is None else (np.zeros(_ITEMS + 1, np.int64), items[:0])
    few: Labels | Relevance
    if isinstance(matches, Relevance):
        few = Relevance(np.arange(_ITEMS + 1), (items + 1) % _ITEMS, ignored=ignored)
    else:
        junk, distractors = ([2] if len(listed) else [] for listed in (matches.junk, matches.distractors))
        groups = None if matches.groups is None else items % 2
        few = Labels(labels, groups, junk=junk, distractors=distractors, ignored=ignored)
    evaluate(evaluator, Embedded(np.eye(_ITEMS, dtype=np.float32), labels, matches=few))

"""Check before training that the data set suffices and the parts fit together; errors name the
setting to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from dml_core import (
    BatchSampler,
    Dataset,
    DmlError,
    Evaluator,
    InvalidOption,
    Labels,
    Matching,
    MiningEvaluator,
    MiningSampler,
    Registry,
    RelatedDataset,
    Relevance,
    Split,
)
from dml_train.measure.embed import groups_of, match_sides
from dml_train.measure.evaluate import Embedded, evaluate, make_evaluator
from dml_train.recipe.tables import Initialisation, Recipe
from dml_train.training.class_weights import find_class_weights

_ITEMS = 8  # number of items in the rehearsed evaluation, in 2 classes


def check_sizes(dataset: Dataset, train: Split, described: str, *, tests: bool) -> None:
    """Raise a `DmlError` if there are fewer than 2 classes to train on, or none of the test queries
    can be matched.

    Args:
        dataset: all parts.
        train: the training split except the held-out classes.
        described: the text that `describe_training` returns.
        tests: whether the run measures the test split.
    """
    if len(train.class_names) < 2:
        raise DmlError(
            f"{described}; training needs at least two classes to tell apart: add "
            "classes, or hold out fewer of them (dataset.train_fraction, validation.class_fraction)"
        )
    test = dataset.test
    if tests and dataset.gallery is None and np.bincount(test.labels).max(initial=0) < 2:
        raise DmlError(
            f"the test split has {_count(len(test), 'image')} of "
            f"{_count(len(test.class_names), 'class')}, one per class, so no query has a match; "
            "expected classes with at least two images"
        )


def build_sampler(
    table: Mapping[str, Any], seed: int, registry: Registry, train: Split, described: str
) -> BatchSampler:
    """Build the sampler; an error includes `described`, the size of the training split.

    Raise a `DmlError` if an option is invalid, or the sampler doesn't yield a batch.
    """
    try:
        sampler: BatchSampler = registry.build(
            "samplers", table, {"labels": train.labels, "seed": seed}
        )
    except InvalidOption as error:
        # The largest values that the samplers of dml-core accept for this split.
        wanted = {"batch_size": len(train), "classes_per_batch": len(train.class_names)}
        remedies = [
            f"--set sampler.{key}={most}"
            for key, most in wanted.items()
            if int(table.get(key, 0)) > most
        ]
        raise InvalidOption(
            f"{error}; {described}{': ' if remedies else ''}{' '.join(remedies)}"
        ) from error
    if len(sampler) < 1:
        raise DmlError(f"the sampler {table['name']!r} doesn't give a batch; {described}")
    return sampler


def describe_training(dataset: Dataset, train: Split, share: float | None) -> str:
    """Describe the sizes of training and test split, the data set's train_fraction, and the
    held-out classes.
    """
    classes = len(train.class_names)
    text = f"the training split has {_count(len(train), 'image')} of {_count(classes, 'class')}"
    held_out = len(dataset.train.class_names) - classes
    tested = len({*dataset.test.class_names})
    return (
        f"{text}, and the test split {_count(tested, 'class')}"
        + ("" if share is None else f" (dataset.train_fraction is {share:g})")
        + (f"; {held_out} more held out for validation" if held_out else "")
    )


def check_matching(
    recipe: Recipe, registry: Registry, dataset: Dataset, validation: Split | None
) -> None:
    """Raise a `DmlError` if groups or lists don't fit the splits or the evaluator, or exclude all
    matches.

    Check the held-out classes, `validation`, and, unless ``evaluation.test`` is false, the test
    split.
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
    """Check a split's matches (groups, lists or relevance), and return the queries' part; None if
    only labels decide.

    Raise a TypeError or ValueError if the matches don't fit the splits, or none of the queries can
    be matched.
    """
    groups = groups_of(queries)
    if isinstance(matches, Relevance) and (groups is not None or groups_of(gallery) is not None):
        raise ValueError(
            "the splits have groups, and matches is a Relevance; expected only one of these"
        )
    if isinstance(matches, Labels) and not (
        np.array_equal(matches.ids, queries.labels)
        and (
            groups is matches.groups is None
            or np.array_equal(np.array(groups), np.array(matches.groups))
        )
    ):
        raise ValueError(
            "matches has labels or groups that differ from the split's; expected equal ones"
        )
    if not isinstance(matches, Labels | Relevance | None):
        raise TypeError(f"matches is a {type(matches).__name__}; expected Labels or Relevance")
    stated, items = match_sides(queries, gallery, matches)
    if stated is None:
        return None
    if len(stated) != len(queries):
        raise ValueError(f"matches contains {len(stated):,} queries; expected {len(queries):,}")
    if not Matching(stated, items, None if gallery is None else len(gallery)).has_match().any():
        raise ValueError(
            "no query has a match that the rankings don't exclude; expected classes with items in "
            "more than one group, and lists that don't exclude all matches"
        )
    return stated


def _rehearse(recipe: Recipe, registry: Registry, matches: Labels | Relevance) -> None:
    """Evaluate a few items with matches of this kind; raise a `DmlError` if these aren't supported
    by the evaluator.
    """
    # A recipe may ask for more clusters than there are items here.
    table = {
        key: value for key, value in recipe.evaluation.component().items() if key != "n_clusters"
    }
    evaluator: Evaluator = make_evaluator(table, registry, recipe.training.seed)
    items = np.arange(_ITEMS)
    labels = items // (_ITEMS // 2)
    ignored = None if matches.ignored is None else (np.zeros(_ITEMS + 1, np.int64), items[:0])
    few: Labels | Relevance
    if isinstance(matches, Relevance):
        few = Relevance(np.arange(_ITEMS + 1), (items + 1) % _ITEMS, ignored=ignored)
    else:
        junk, distractors = (
            [2] if len(listed) else [] for listed in (matches.junk, matches.distractors)
        )
        groups = None if matches.groups is None else items % 2
        few = Labels(labels, groups, junk=junk, distractors=distractors, ignored=ignored)
    evaluate(evaluator, Embedded(np.eye(_ITEMS, dtype=np.float32), labels, matches=few))


def check_mining(recipe: Recipe, sampler: BatchSampler, evaluator: Evaluator) -> None:
    """Raise a `DmlError` if the evaluator can't find the negatives that the sampler needs."""
    if isinstance(sampler, MiningSampler) and not isinstance(evaluator, MiningEvaluator):
        raise DmlError(
            f"the sampler {recipe.sampler['name']!r} mines hard negatives, which the evaluator "
            f"{recipe.evaluation.name!r} doesn't find; expected an evaluator with "
            "hard_negatives(), such as evaluation.name = 'exact'"
        )


def check_initialisation(table: Initialisation, loss: nn.Module, num_classes: int) -> None:
    """Raise a `DmlError` if the table initialises class weights, but the loss doesn't have a weight
    per class.
    """
    if table.class_weights == "default":
        return
    found = list(find_class_weights(loss))
    counts = sorted({own.num_classes for own in found})
    if counts != [num_classes]:
        has = (
            f"has {counts[0]} class weights for {num_classes} classes"
            if found
            else "has no class weights"
        )
        raise DmlError(
            f"initialisation.class_weights is {table.class_weights!r}, but the loss {has}; "
            "omit the key, or choose a class loss with one weight per class, such as norm-softmax"
        )


def _count(number: int, noun: str) -> str:
    return (
        f"{number:,} {noun}"
        if number == 1
        else f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"
    )

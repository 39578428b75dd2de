"""Checks that a data set is large enough for its recipe; an error states the sizes and the setting to change."""

from __future__ import annotations

import numpy as np

from dml_core import BatchSampler, Dataset, DmlError, InvalidOption, Registry, Split
from dml_train.recipe.tables import Recipe


def check_sizes(recipe: Recipe, dataset: Dataset, train: Split) -> None:
    """Check that there are classes to tell apart, and matches to measure.

    Args:
        recipe: the run's.
        dataset: all parts.
        train: the training split without the held-out classes.

    Raises:
        DmlError: for fewer than two training classes, or a test split in which no query has a match.
    """
    if len(train.class_names) < 2:
        raise DmlError(
            f"{describe_training(recipe, dataset, train)}; training needs at least two classes to tell apart: add "
            "classes, or hold out fewer of them (dataset.train_fraction, validation.class_fraction)"
        )
    test = dataset.test
    if recipe.evaluation.test and dataset.gallery is None and np.bincount(test.labels).max(initial=0) < 2:
        raise DmlError(
            f"the test split has {_count(len(test), 'image')} of {_count(len(test.class_names), 'class')}, one "
            "of each: no query would have a match; expected classes with at least two images"
        )


def build_sampler(recipe: Recipe, registry: Registry, dataset: Dataset, train: Split) -> BatchSampler:
    """Build the sampler; an error names the size of the training split.

    Raises:
        DmlError: if it refuses its options, or gives no batch.
    """
    context = {"labels": train.labels, "seed": recipe.training.seed}
    try:
        sampler: BatchSampler = registry.build("samplers", recipe.sampler, context)
    except InvalidOption as error:
        remedies = _remedies(recipe, train)
        raise InvalidOption(f"{error}; {describe_training(recipe, dataset, train)}{remedies}") from error
    if len(sampler) < 1:
        raise DmlError(
            f"the sampler {recipe.sampler['name']!r} gives no batch; {describe_training(recipe, dataset, train)}"
        )
    return sampler


def describe_training(recipe: Recipe, dataset: Dataset, train: Split) -> str:
    """Describe the training split: its size, and how many classes are held out of it."""
    classes = len(train.class_names)
    text = f"the training split has {_count(len(train), 'image')} of {_count(classes, 'class')}"
    held_out = len(dataset.train.class_names) - classes
    tested = len({*dataset.test.class_names})
    share = recipe.dataset.get("train_fraction")
    return (
        f"{text}, and the test split {_count(tested, 'class')}"
        + ("" if share is None else f" (dataset.train_fraction is {share:g})")
        + (f"; {held_out} more held out for validation" if held_out else "")
    )


def _remedies(recipe: Recipe, train: Split) -> str:
    """Return the settings with which the samplers of dml-core take a split so small; empty for others."""
    wanted = {"batch_size": len(train), "classes_per_batch": len(train.class_names)}
    found = [
        f"--set sampler.{key}={most}"
        for key, most in wanted.items()
        if int(recipe.sampler.get(key, 0)) > most
    ]
    return f": {' '.join(found)}" if found else ""


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"

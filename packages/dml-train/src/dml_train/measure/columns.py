"""Some columns of an embedding, measured alone: levels of a concatenation, or the first numbers.

Shapes: `Q` queries, `G` gallery, `D` embedding dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dml_core import DmlError, Evaluator, nearest
from dml_train.measure.evaluate import Embedded, evaluate_on_ranks
from dml_train.ranks.ranks import Ranks
from dml_train.recipe.tables import Recipe


def select_levels(embedded: Embedded, recipe: Recipe, levels: Sequence[str]) -> Embedded:
    """Cut a run's embeddings to some of its levels, to measure each level alone and several together.

    Source: Wang et al. 2021, Ranked List Loss for Deep Metric Learning, tables 6 and 7.

    Args:
        embedded: queries (Q, D), and the gallery (G, D) if there is one, of all the run's levels.
        recipe: the run's recipe.
        levels: names among `backbone.levels`, in the order of concatenation.

    Raises:
        DmlError: for a name that isn't a level of the run's embedding.
    """
    names = list(recipe.backbone.get("levels") or ())
    dims = {
        name: level.dim
        for name, level in zip(names, recipe.embedding.of_levels(len(names) or 1), strict=False)
    }
    stored = recipe.embedding.levels or names
    columns, first = {}, 0
    for name in stored:
        columns[name] = np.arange(first, first + dims[name])
        first += dims[name]
    for name in levels:
        if name not in columns:
            raise DmlError(
                f"the run's embedding has no level {name!r}{nearest(name, columns)} "
                f"levels: {', '.join(columns) or 'it has one only'}"
            )
    return embedded.select(np.concatenate([columns[name] for name in levels]))


def select_prefix(embedded: Embedded, prefix: int) -> Embedded:
    """Cut queries (Q, D) and gallery (G, D) to their first `prefix` numbers.

    Raises:
        DmlError: unless the prefix is in [1, D].
    """
    check_prefixes([prefix], embedded.embeddings.shape[1])
    return embedded.select(slice(prefix))


def check_prefixes(prefixes: Sequence[int], dim: int) -> None:
    """Raise DmlError unless every prefix is in [1, dim]."""
    for prefix in prefixes:
        if not 1 <= prefix <= dim:
            raise DmlError(
                f"a prefix of {prefix} numbers was asked of an embedding of {dim}; expected 1 to {dim}"
            )


def evaluate_prefixes_on_ranks(
    ranks: Ranks, evaluator: Evaluator, embedded: Embedded, prefixes: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """Evaluate prefixes of an embedding on several ranks; return the metrics by their lengths, in JSON's types."""
    return {
        str(prefix): evaluate_on_ranks(ranks, evaluator, select_prefix(embedded, prefix)).metrics
        for prefix in prefixes
    }

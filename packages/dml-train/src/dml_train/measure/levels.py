"""Some levels of an embedding that concatenates several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dml_core import DmlError, nearest
from dml_train.measure.evaluate import Embedded
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

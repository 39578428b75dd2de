"""The per-query values of a run's final evaluation, saved so that reports needn't evaluate again.

``per_query.npz`` holds an array (Q,) for each metric, a value per query, and a checksum of the evaluator's table and
the seed. A different checksum says that the recipe's evaluator has changed since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from dml_core import Evaluation, Evaluator, RestoringEvaluator
from dml_train.files import write_atomically
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder

_CHECKSUM = "checksum"  # its name among the arrays


def save_per_query(folder: RunFolder, recipe: Recipe, evaluation: Evaluation) -> None:
    """Save the per-query values of an evaluation by the recipe's evaluator in the run's folder."""
    arrays = {name: np.asarray(values_Q, dtype=np.float64) for name, values_Q in evaluation.per_query.items()}
    arrays[_CHECKSUM] = np.array(_checksum(recipe))
    write_atomically(folder.per_query, lambda file: np.savez(file, allow_pickle=False, **arrays))


def restore_evaluation(
    folder: RunFolder, recipe: Recipe, result: Mapping[str, Any], evaluator: Evaluator
) -> Evaluation | None:
    """Restore a run's final evaluation from its folder, with `result`, the contents of ``evaluation.json``.

    Returns None if the recipe's evaluator isn't a `RestoringEvaluator`, or if the folder's values are missing, of
    another evaluator, or lack a metric that the evaluator has since gained.

    Raises:
        DmlError: if the file was changed or damaged.
    """
    if not isinstance(evaluator, RestoringEvaluator) or not folder.per_query.exists():
        return None
    folder.check_results(folder.per_query)
    with folder.per_query.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        if str(stored[_CHECKSUM]) != _checksum(recipe):
            return None
        per_query = {name: stored[name] for name in stored.files if name != _CHECKSUM}
    try:
        return evaluator.restore(result, per_query)
    except KeyError:  # saved before the evaluator measured one of its metrics
        return None


def _checksum(recipe: Recipe) -> str:
    """Return the SHA-256 of the evaluator's table and the seed."""
    described = [recipe.evaluation.component(), recipe.training.seed]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()

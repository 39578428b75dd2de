"""The per-query values of a run's final evaluation, saved so that reports needn't evaluate again.

``per_query.npz`` holds an array (Q,) for each metric, and a checksum of what was evaluated: the evaluator's options,
the embeddings, labels, groups and lists of matches, and `evaluation.json`. Where the checksum differs, the values
belong to something else.

Shapes: `Q` queries.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from dml_core import Evaluation, Evaluator, RestoringEvaluator
from dml_train.files import write_atomically
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder

_CHECKSUM = "checksum"  # its name among the arrays


def save_per_query(
    folder: RunFolder, recipe: Recipe, result: Mapping[str, Any], evaluation: Evaluation
) -> None:
    """Save an evaluation's per-query values in the run's folder, which holds the embeddings and labels already.

    Args:
        folder: the run's folder.
        recipe: names the evaluator and its options.
        result: the contents of ``evaluation.json``.
        evaluation: holds the values.
    """
    arrays = {name: np.asarray(values_Q, dtype=np.float64) for name, values_Q in evaluation.per_query.items()}
    checksum = np.array(_checksum(folder, recipe, result))
    write_atomically(
        folder.per_query,
        lambda file: np.savez(file, allow_pickle=False, **{**arrays, _CHECKSUM: checksum}),
    )


def restore_evaluation(
    folder: RunFolder, recipe: Recipe, result: Mapping[str, Any], evaluator: Evaluator
) -> Evaluation | None:
    """Restore a run's final evaluation from its folder.

    Args:
        folder: the run's folder.
        recipe: names the evaluator and its options.
        result: the contents of ``evaluation.json``.
        evaluator: rebuilds the evaluation if it is a `RestoringEvaluator`.

    Returns:
        The evaluation; None if the evaluator can't rebuild it, or if the folder's values are missing, damaged, of
        another evaluation, or lack a metric that the evaluator has since gained.
    """
    if not isinstance(evaluator, RestoringEvaluator):
        return None
    try:
        with folder.per_query.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            if str(stored[_CHECKSUM]) != _checksum(folder, recipe, result):
                return None
            per_query = {name: stored[name] for name in stored.files if name != _CHECKSUM}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    try:
        return evaluator.restore(result, per_query)
    except KeyError:  # saved before the evaluator measured one of its metrics
        return None


def _checksum(folder: RunFolder, recipe: Recipe, result: Mapping[str, Any]) -> str:
    """The SHA-256 of all that an evaluation depends on, and of its metrics."""
    described = [recipe.evaluation.component(), recipe.training.seed, result]
    digest = hashlib.sha256(json.dumps(described).encode())
    files = [folder.relation]
    for part in ("", "gallery"):
        files += [folder.embeddings(part), folder.labels(part), folder.groups(part)]
    for path in files:
        if path.exists():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()

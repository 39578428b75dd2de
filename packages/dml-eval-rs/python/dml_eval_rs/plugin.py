"""The plugin for dml-core: the evaluators `exact` and `hamming`, imported when one is made."""

from __future__ import annotations

from collections.abc import Iterable

from dml_core import Component, hookimpl


@hookimpl
def dml_evaluators() -> Iterable[Component]:
    """Provide the two evaluators."""
    return [
        Component(
            "exact",
            "dml_eval_rs.evaluators:Evaluator",
            "exact retrieval and clustering metrics of the embeddings",
        ),
        Component(
            "hamming",
            "dml_eval_rs.evaluators:HammingEvaluator",
            "exact retrieval metrics of the embeddings' signs, one bit per dimension",
        ),
    ]

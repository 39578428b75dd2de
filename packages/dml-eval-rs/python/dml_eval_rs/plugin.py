"""The plugin for dml-core: the evaluators `exact` and `hamming`, imported when they are used."""

from __future__ import annotations

from collections.abc import Iterable

from dml_core import Component, hookimpl

_HOME = "dml_eval_rs.evaluators"


@hookimpl
def dml_evaluators() -> Iterable[Component]:
    """Provide the evaluators."""
    embeddings = "exact retrieval and clustering metrics for embeddings"
    signs = "exact retrieval metrics for the signs of embeddings, one bit per dimension"
    return [
        Component("exact", f"{_HOME}:Evaluator", embeddings),
        Component("hamming", f"{_HOME}:HammingEvaluator", signs),
    ]

"""Exact retrieval, verification and clustering metrics, and exact search, for embeddings and binary codes.

`evaluate` measures retrieval, `verify` and `open_set` measure thresholds, `index_recall` measures an approximate index,
and `compare` tabulates several models. `Labels` and `Relevance` say which items match. `knn` and `range_search` search,
`hard_negatives` mines, `kmeans` clusters, and `nmi`, `ami` and `ari` compare partitions. `evaluate_shards`,
`verify_shards` and `knn_shards` do the same for embeddings in shards, by workers of any kind. Names are imported when
they are first used, so that importing the package stays fast. docs/reference/metrics.md and verification.md of the
repository define every number.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dml_eval_rs.clustering import KMeans as KMeans
    from dml_eval_rs.clustering import ami as ami
    from dml_eval_rs.clustering import ari as ari
    from dml_eval_rs.clustering import kmeans as kmeans
    from dml_eval_rs.clustering import nmi as nmi
    from dml_eval_rs.inputs.conversion import concatenate_blocks as concatenate_blocks
    from dml_eval_rs.matches.labels import Labels as Labels
    from dml_eval_rs.matches.matching import Matching as Matching
    from dml_eval_rs.matches.relevance import Relevance as Relevance
    from dml_eval_rs.matches.relevance import relevance_from_labels as relevance_from_labels
    from dml_eval_rs.metrics.comparison import ComparisonTable as ComparisonTable
    from dml_eval_rs.metrics.comparison import compare as compare
    from dml_eval_rs.metrics.evaluation import Evaluation as Evaluation
    from dml_eval_rs.metrics.intervals import Comparison as Comparison
    from dml_eval_rs.metrics.intervals import Interval as Interval
    from dml_eval_rs.metrics.names import METRICS as METRICS
    from dml_eval_rs.peers import Peers as Peers
    from dml_eval_rs.retrieval import evaluate as evaluate
    from dml_eval_rs.retrieval import evaluate_levels as evaluate_levels
    from dml_eval_rs.retrieval import evaluate_ties as evaluate_ties
    from dml_eval_rs.search import IndexRecall as IndexRecall
    from dml_eval_rs.search import binarize as binarize
    from dml_eval_rs.search import hard_negatives as hard_negatives
    from dml_eval_rs.search import index_recall as index_recall
    from dml_eval_rs.search import knn as knn
    from dml_eval_rs.search import range_search as range_search
    from dml_eval_rs.shards.evaluation import evaluate_shards as evaluate_shards
    from dml_eval_rs.shards.search import knn_shards as knn_shards
    from dml_eval_rs.shards.verification import verify_shards as verify_shards
    from dml_eval_rs.verification.result import Roc as Roc
    from dml_eval_rs.verification.result import Verification as Verification
    from dml_eval_rs.verification.verify import OpenSet as OpenSet
    from dml_eval_rs.verification.verify import open_set as open_set
    from dml_eval_rs.verification.verify import verify as verify

__version__ = "0.1.0"

# Module → its public names; the imports above say the same to type checkers.
_NAMES = {
    "clustering": ["KMeans", "ami", "ari", "kmeans", "nmi"],
    "inputs.conversion": ["concatenate_blocks"],
    "matches.labels": ["Labels"],
    "matches.matching": ["Matching"],
    "matches.relevance": ["Relevance", "relevance_from_labels"],
    "metrics.comparison": ["ComparisonTable", "compare"],
    "metrics.evaluation": ["Evaluation"],
    "metrics.intervals": ["Comparison", "Interval"],
    "metrics.names": ["METRICS"],
    "peers": ["Peers"],
    "retrieval": ["evaluate", "evaluate_levels", "evaluate_ties"],
    "search": ["IndexRecall", "binarize", "hard_negatives", "index_recall", "knn", "range_search"],
    "shards.evaluation": ["evaluate_shards"],
    "shards.search": ["knn_shards"],
    "shards.verification": ["verify_shards"],
    "verification.result": ["Roc", "Verification"],
    "verification.verify": ["OpenSet", "open_set", "verify"],
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name from its module at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})

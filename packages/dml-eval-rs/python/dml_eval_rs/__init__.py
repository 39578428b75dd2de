"""Exact retrieval and clustering metrics for embeddings and binary codes.

`evaluate` and `evaluate_codes` measure retrieval, `verify` and `open_set` thresholds, `index_recall` an approximate
index. `knn`, `knn_codes` and `range_search` search, `kmeans` clusters, `nmi`, `ami` and `ari` compare partitions.
docs/reference/metrics.md and docs/reference/verification.md of the repository define every number.
"""

from __future__ import annotations

import warnings

from dml_eval_rs import _native
from dml_eval_rs.clustering import KMeans, ami, ari, kmeans, nmi
from dml_eval_rs.evaluation import Comparison, Evaluation, Interval
from dml_eval_rs.index_recall import IndexRecall, index_recall
from dml_eval_rs.open_set import OpenSet, open_set
from dml_eval_rs.peers import Peers
from dml_eval_rs.range_search import range_search
from dml_eval_rs.retrieval import binarize, evaluate, evaluate_codes
from dml_eval_rs.search import knn, knn_codes
from dml_eval_rs.streaming import PartialCounts, StreamingEvaluator
from dml_eval_rs.verification import verify
from dml_eval_rs.verification_result import Roc, Verification

__all__ = [
    "Comparison",
    "Evaluation",
    "IndexRecall",
    "Interval",
    "KMeans",
    "OpenSet",
    "PartialCounts",
    "Peers",
    "Roc",
    "StreamingEvaluator",
    "Verification",
    "ami",
    "ari",
    "binarize",
    "evaluate",
    "evaluate_codes",
    "index_recall",
    "kmeans",
    "knn",
    "knn_codes",
    "nmi",
    "open_set",
    "range_search",
    "verify",
]

__version__ = "0.1.0"

if not _native.OPTIMIZED:
    warnings.warn(
        "dml_eval_rs was built without optimisation and is tens of times slower than an optimised build: "
        "build it with 'maturin develop --release'",
        RuntimeWarning,
        stacklevel=2,
    )

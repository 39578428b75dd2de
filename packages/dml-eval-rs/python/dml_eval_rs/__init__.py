"""Exact retrieval and clustering metrics for embeddings and binary codes.

`evaluate` and `evaluate_codes` measure retrieval, `evaluate_levels` at several levels of labels, `evaluate_ties`
under several rules for ties, `relevance_from_labels` lists matches for them, `verify` and `open_set` measure
thresholds, `index_recall` an approximate index. `knn`, `knn_codes` and `range_search` search, `hard_negatives` mines,
`kmeans` clusters, `nmi`, `ami` and `ari` compare partitions. `evaluate_shards` and `knn_shards` do so for embeddings in
shards, by workers of any kind. A name is imported at its first use, so that importing the package stays fast.
docs/reference/metrics.md and docs/reference/verification.md of the repository define every number.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dml_eval_rs.clustering import KMeans, ami, ari, kmeans, nmi
    from dml_eval_rs.concatenation import concatenate_blocks
    from dml_eval_rs.evaluation import Comparison, Evaluation, Interval
    from dml_eval_rs.index_recall import IndexRecall, index_recall
    from dml_eval_rs.levels import evaluate_levels
    from dml_eval_rs.mining import hard_negatives
    from dml_eval_rs.open_set import OpenSet, open_set
    from dml_eval_rs.partial_counts import PartialCounts
    from dml_eval_rs.partial_pairs import PartialPairs
    from dml_eval_rs.peers import Peers
    from dml_eval_rs.range_search import range_search
    from dml_eval_rs.relevance import relevance_from_labels
    from dml_eval_rs.retrieval import binarize, evaluate, evaluate_codes
    from dml_eval_rs.search import knn, knn_codes
    from dml_eval_rs.shards.evaluation import evaluate_shards
    from dml_eval_rs.shards.search import knn_shards
    from dml_eval_rs.streaming import StreamingEvaluator
    from dml_eval_rs.tie_rules import evaluate_ties
    from dml_eval_rs.verification import verify, verify_codes
    from dml_eval_rs.verification_result import Roc, Verification
    from dml_eval_rs.verification_streaming import StreamingVerifier

__all__ = [
    "Comparison",
    "Evaluation",
    "IndexRecall",
    "Interval",
    "KMeans",
    "OpenSet",
    "PartialCounts",
    "PartialPairs",
    "Peers",
    "Roc",
    "StreamingEvaluator",
    "StreamingVerifier",
    "Verification",
    "ami",
    "ari",
    "binarize",
    "concatenate_blocks",
    "evaluate",
    "evaluate_codes",
    "evaluate_levels",
    "evaluate_shards",
    "evaluate_ties",
    "hard_negatives",
    "index_recall",
    "kmeans",
    "knn",
    "knn_codes",
    "knn_shards",
    "nmi",
    "open_set",
    "range_search",
    "relevance_from_labels",
    "verify",
    "verify_codes",
]

__version__ = "0.1.0"

_HOMES = {
    "Comparison": "dml_eval_rs.evaluation",
    "Evaluation": "dml_eval_rs.evaluation",
    "IndexRecall": "dml_eval_rs.index_recall",
    "Interval": "dml_eval_rs.evaluation",
    "KMeans": "dml_eval_rs.clustering",
    "OpenSet": "dml_eval_rs.open_set",
    "PartialCounts": "dml_eval_rs.partial_counts",
    "PartialPairs": "dml_eval_rs.partial_pairs",
    "Peers": "dml_eval_rs.peers",
    "Roc": "dml_eval_rs.verification_result",
    "StreamingEvaluator": "dml_eval_rs.streaming",
    "StreamingVerifier": "dml_eval_rs.verification_streaming",
    "Verification": "dml_eval_rs.verification_result",
    "ami": "dml_eval_rs.clustering",
    "ari": "dml_eval_rs.clustering",
    "binarize": "dml_eval_rs.retrieval",
    "concatenate_blocks": "dml_eval_rs.concatenation",
    "evaluate": "dml_eval_rs.retrieval",
    "evaluate_codes": "dml_eval_rs.retrieval",
    "evaluate_levels": "dml_eval_rs.levels",
    "evaluate_shards": "dml_eval_rs.shards.evaluation",
    "evaluate_ties": "dml_eval_rs.tie_rules",
    "hard_negatives": "dml_eval_rs.mining",
    "index_recall": "dml_eval_rs.index_recall",
    "kmeans": "dml_eval_rs.clustering",
    "knn": "dml_eval_rs.search",
    "knn_codes": "dml_eval_rs.search",
    "knn_shards": "dml_eval_rs.shards.search",
    "nmi": "dml_eval_rs.clustering",
    "open_set": "dml_eval_rs.open_set",
    "range_search": "dml_eval_rs.range_search",
    "relevance_from_labels": "dml_eval_rs.relevance",
    "verify": "dml_eval_rs.verification",
    "verify_codes": "dml_eval_rs.verification",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module, or the compiled module, at the first use."""
    if name == "_native":
        return _import_native()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_HOMES[name])
    # All names of the module: importing it has just bound it here, which would hide a function of its own name.
    found = {public: getattr(module, public) for public, home in _HOMES.items() if home == _HOMES[name]}
    globals().update(found)
    return found[name]


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})


def _import_native() -> Any:
    """Import the compiled module, which every module here takes from this package."""
    native = importlib.import_module("dml_eval_rs._native")
    if not native.OPTIMIZED:
        warnings.warn(
            "dml_eval_rs was built without optimisation and is tens of times slower than an optimised build: "
            "build it with 'maturin develop --release'",
            RuntimeWarning,
            stacklevel=2,
        )
    return native

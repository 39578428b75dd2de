"""Exact retrieval, verification and clustering metrics, and exact search, for embeddings and binary
codes.

Use `evaluate` to measure retrieval, `verify` and `open_set` to measure thresholds, `index_recall`
to measure an approximate index, and `compare` to compare models. `Labels` and `Relevance` say which
items match. Use `knn` and `range_search` to search, `rerank` and `expand_queries` to improve
results, `hard_negatives` to mine, `kmeans` to cluster, and `nmi`, `ami` and `ari` to compare
partitions. `evaluate_shards`, `verify_shards` and `knn_shards` can be used when embeddings are in
shards, with any kind of worker. For definitions see docs/reference/metrics.md and verification.md
in the repository.

To keep the package's import fast, a name is imported when it is first used. `__init__.pyi` lists
the names.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

# Importing pathlib would take longer than the rest of this module.
with open(f"{__file__}i", encoding="utf-8") as _table:  # noqa: PTH123
    _HOMES = {line.split()[3]: line.split()[1] for line in _table if line.startswith("from ")}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})

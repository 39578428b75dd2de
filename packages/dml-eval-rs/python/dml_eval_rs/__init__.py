"""Exact retrieval, verification and clustering metrics, and exact search, for embeddings and binary codes.

`evaluate` measures retrieval, `verify` and `open_set` measure thresholds, `index_recall` measures an approximate index,
and `compare` tabulates several models. `Labels` and `Relevance` say which items match. `knn` and `range_search` search,
`hard_negatives` mines, `kmeans` clusters, and `nmi`, `ami` and `ari` compare partitions. `evaluate_shards`,
`verify_shards` and `knn_shards` do the same for embeddings in shards, by workers of any kind.
docs/reference/metrics.md and verification.md of the repository define every number.

A name is imported at its first use, so that importing the package stays fast. `__init__.pyi` lists the names.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

# pathlib would take longer to import than all else here.
with open(f"{__file__}i", encoding="utf-8") as _table:  # noqa: PTH123
    _HOMES = {line.split()[3]: line.split()[1] for line in _table if line.startswith("from ")}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Import a public name from its module at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})

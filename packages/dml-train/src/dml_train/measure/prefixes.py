"""Prefixes of an embedding, each measured alone: what its first numbers are worth.

Shapes: `Q` queries, `G` gallery, `D` embedding dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dml_core import DmlError, Evaluator
from dml_train.measure.evaluate import Embedded, evaluate_on_ranks
from dml_train.ranks.ranks import Ranks


def select_prefix(embedded: Embedded, prefix: int) -> Embedded:
    """Cut queries (Q, D) and gallery (G, D) to their first `prefix` numbers.

    Raises:
        DmlError: unless the prefix is in [1, D].
    """
    check_prefixes([prefix], embedded.embeddings.shape[1])
    return embedded.select(slice(prefix))


def check_prefixes(prefixes: Sequence[int], dim: int) -> None:
    """Raise DmlError unless every prefix is in [1, dim]."""
    for prefix in prefixes:
        if not 1 <= prefix <= dim:
            raise DmlError(
                f"a prefix of {prefix} numbers was asked of an embedding of {dim}; expected 1 to {dim}"
            )


def evaluate_prefixes_on_ranks(
    ranks: Ranks, evaluator: Evaluator, embedded: Embedded, prefixes: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """Evaluate prefixes of an embedding on several ranks; return the metrics by their lengths, in JSON's types."""
    return {
        str(prefix): evaluate_on_ranks(ranks, evaluator, select_prefix(embedded, prefix)).metrics
        for prefix in prefixes
    }

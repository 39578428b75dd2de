"""The names of metrics for readers."""

from __future__ import annotations

from collections.abc import Collection

# Metrics of the K nearest: an evaluation has a number for each K under these names.
BY_K = {"recall": "Recall", "precision": "Precision", "average_precision_at": "MAP", "ndcg": "nDCG"}
LONG_NAMES = {
    "precision_at_1": "Precision@1",
    "r_precision": "R-precision",
    "map_at_r": "MAP@R",
    "mean_reciprocal_rank": "Mean reciprocal rank",
    "average_precision": "mAP",
    "mean_inverse_negative_penalty": "mINP",
    "nmi": "NMI",
    "ami": "AMI",
    "ari": "ARI",
}


def title_of(logged: str) -> str:
    """Return the title of a logged value: Recall@1 of ``"evaluation/recall/1"``; of ``"loss"``, the same."""
    prefix, _, name = logged.partition("/")
    if prefix not in ("evaluation", "validation"):
        return logged
    metric, _, k = name.partition("/")
    title = f"{BY_K[metric]}@{k}" if k and metric in BY_K else LONG_NAMES.get(name, name)
    return title if prefix == "evaluation" else f"{title} of the held-out classes"


def is_count(logged: str) -> bool:
    """Whether a logged value is a number of queries or items, which is the same at every evaluation."""
    return logged.rpartition("/")[2] in ("n_queries", "n_unmatched", "n_gallery")


def repeats(logged: str, names: Collection[str]) -> bool:
    """Whether a logged value repeats another of these: precision@1 is Recall@1."""
    prefix, slash, name = logged.rpartition("/")
    return name == "precision_at_1" and f"{prefix}{slash}recall/1" in names

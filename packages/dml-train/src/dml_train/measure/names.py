"""The names of metrics for readers."""

from __future__ import annotations

from collections.abc import Collection, Iterable

# Metrics of the K nearest: an evaluation has a number for each K under these names.
BY_K = {
    "recall": "Recall",
    "precision": "Precision",
    "average_precision_at": "MAP",
    "ndcg": "nDCG",
    "recall_share": "Recall share",
    "reciprocal_rank_at": "MRR",
}
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
# A metric's name, its K replaced by the letter → what it is, as a mean over the queries of which R items match each.
_MEANINGS = {
    "Recall@K": "the share of queries with a match among their K nearest items",
    "Precision@K": "the share of matches among the K nearest items",
    "MAP@K": "average precision of the K nearest items: matches in front count more",
    "nDCG@K": "gain of the K nearest items, discounted by rank, as a share of the best order's",
    "Recall share@K": "the share of the R matches that are among the K nearest items",
    "MRR@K": "1 / rank of the first match, 0 beyond rank K",
    "R-precision": "the share of matches among the R nearest items",
    "MAP@R": "average precision of the R nearest items: matches in front count more",
    "Mean reciprocal rank": "1 / rank of the first match",
    "mAP": "average precision of the whole ranking",
    "mINP": "R / rank of the last match",
    "NMI": "agreement of k-means clusters with the classes: mutual information, normalised",
    "AMI": "agreement of the clusters with the classes, corrected for chance: 0 for random clusters",
    "ARI": "the share of pairs on which clusters and classes agree, corrected for chance",
}


def explain(names: Iterable[str]) -> dict[str, str]:
    """Return the meanings of these metrics in words; all Recall@K have one."""
    keys = dict.fromkeys(name if name in _MEANINGS else f"{name.partition('@')[0]}@K" for name in names)
    return {key: _MEANINGS[key] for key in keys if key in _MEANINGS}


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

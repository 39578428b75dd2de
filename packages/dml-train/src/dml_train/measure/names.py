"""What people call the figures of an evaluation."""

from __future__ import annotations

LONG_NAMES = {
    "precision_at_1": "Precision@1",
    "r_precision": "R-precision",
    "map_at_r": "MAP@R",
    "mean_reciprocal_rank": "Mean reciprocal rank",
    "nmi": "NMI",
    "ami": "AMI",
}


def title_of(logged: str) -> str:
    """The title of a logged value: ``"evaluation/recall/1"`` is Recall@1, and ``"loss"`` itself."""
    prefix, _, name = logged.partition("/")
    if prefix not in ("evaluation", "validation"):
        return logged
    title = LONG_NAMES.get(name, name.replace("recall/", "Recall@"))
    return title if prefix == "evaluation" else f"{title} of the classes held out"


def is_count(logged: str) -> bool:
    """Whether a logged value counts queries, and so is the same at every evaluation."""
    return logged.rpartition("/")[2] in ("n_queries", "n_unmatched")

"""The table of metrics. Names, titles and meanings are listed only here.

If a name ends in K (a number of neighbours) or X (a share of accepted negatives), it is a family:
for example, ``"recall@K"`` is the family of ``"recall@1"`` and ``"recall@10"``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

Kind = Literal["retrieval", "clustering", "verification"]


class Metric(NamedTuple):
    """A metric, or a family of metrics."""

    title: str  # the name to use in tables and plots
    meaning: str  # a line about a query with R matches, or about pairs
    kind: Kind  # the section in docs/reference/metrics.md that defines the metric


_TABLE: dict[Kind, tuple[tuple[str, str, str], ...]] = {
    "retrieval": (
        ("recall@K", "Recall@K", "the share of queries with a match among their K nearest items"),
        ("precision@K", "Precision@K", "the share of matches among the K nearest items"),
        ("r_precision", "R-precision", "the share of matches among the R nearest items"),
        ("map@r", "MAP@R", "average precision of the R nearest items: matches in front count more"),
        ("mrr", "MRR", "1 / rank of the first match"),
        ("mrr@K", "MRR@K", "1 / rank of the first match, 0 beyond rank K"),
        ("map", "mAP", "average precision of the whole ranking"),
        ("map@K", "MAP@K", "average precision of the K nearest items: matches in front count more"),
        (
            "ndcg@K",
            "nDCG@K",
            "gain of the K nearest items, discounted by rank, relative to the best order",
        ),
        (
            "ir_recall@K",
            "IR recall@K",
            "the share of the R matches that are among the K nearest items",
        ),
        ("minp", "mINP", "R / rank of the last match"),
    ),
    "clustering": (
        (
            "nmi",
            "NMI",
            "mutual information of k-means clusters and labels, over the mean of their entropies",
        ),
        (
            "nmi_min",
            "NMI (min)",
            "mutual information of clusters and labels, over the smaller entropy",
        ),
        (
            "nmi_geometric",
            "NMI (geometric)",
            "mutual information, over the geometric mean of the entropies",
        ),
        (
            "nmi_max",
            "NMI (max)",
            "mutual information of clusters and labels, over the larger entropy",
        ),
        (
            "ami",
            "AMI",
            "agreement of clusters and labels, corrected for chance: 0 for random clusters",
        ),
        (
            "ari",
            "ARI",
            "the share of pairs on which clusters and labels agree, corrected for chance",
        ),
    ),
    "verification": (
        (
            "tar@far=X",
            "TAR@FAR=X",
            "the share of matching pairs accepted if up to X of others are accepted",
        ),
        (
            "eer",
            "EER",
            "the false accept rate at the threshold where it equals the false reject rate",
        ),
        ("auc", "AUC", "the chance that a matching pair scores higher than a non-matching pair"),
        (
            "micro_ap",
            "µAP",
            "average precision of all pairs in a single ranking: matching pairs in front count "
            "more",
        ),
        (
            "accuracy",
            "accuracy",
            "the share of pairs that the other folds' best threshold decides correctly",
        ),
    ),
}

METRICS: Mapping[str, Metric] = {
    name: Metric(title, meaning, kind)
    for kind, rows in _TABLE.items()
    for name, title, meaning in rows
}

DEFAULT = ("recall@1", "recall@10", "recall@100", "precision@1", "r_precision", "map@r", "mrr")


def check_metrics(
    metrics: str | Iterable[str], kinds: Iterable[Kind] = ("retrieval", "clustering")
) -> list[str]:
    """Check that metrics are of these kinds; return distinct names in the requested order; a string
    is a name.
    """
    if not isinstance(metrics, Iterable):
        raise TypeError(f"metrics is {metrics!r}; expected names such as ('recall@1', 'map@r')")
    names = list(dict.fromkeys([metrics] if isinstance(metrics, str) else metrics))
    known = [name for name, metric in METRICS.items() if metric.kind in set(kinds)]
    if not names:
        raise ValueError(f"metrics is empty; expected at least one of {', '.join(known)}")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"metrics contains {name!r}; expected names such as 'recall@1'")
        family = family_of(name)
        if family is None:
            raise ValueError(_describe_unknown(name, known))
        if family not in known:
            came = f"{name!r} is a {METRICS[family].kind} metric, which this function can't measure"
            raise ValueError(f"{came}; expected one of {', '.join(known)}")
        _check_parameter(name, family)
    return names


def _describe_unknown(name: str, known: list[str]) -> str:
    """Return the error message for an unknown name, which suggests the most similar name and lists
    all names.
    """
    lower = name.lower()
    stem, at, number = lower.partition("@")
    if family_of(lower) in known:
        meant = lower
    elif at and f"{stem}@K" in known:
        return f"metric {name!r} has K {number!r}; expected an integer, for example '{stem}@10'"
    else:
        near = difflib.get_close_matches(
            f"{stem}@K" if number.isdecimal() else lower, known, 1, 0.5
        )
        meant = "".join(near)
        if number.isdecimal():
            meant = meant.replace("@K", at + number)
    hint = f"did you mean {meant!r}? Expected" if meant else "expected"
    return f"unknown metric {name!r}; {hint} {', '.join(known)}"


def family_of(name: str) -> str | None:
    """Return the name in the table, for example ``"recall@K"`` for ``"recall@10"``; None if the
    name is unknown.
    """
    if name in METRICS and not name.endswith(("@K", "=X")):
        return name
    stem, at, rest = name.partition("@")
    family = f"{stem}@far=X" if rest.startswith("far=") else f"{stem}@K"
    is_member = at and (rest.startswith("far=") or rest.isdecimal())
    return family if is_member and family in METRICS else None


def title_of(name: str) -> str:
    """Return a metric's title, for example ``"Recall@1"`` for ``"recall@1"``; return unknown names
    unchanged.
    """
    family = family_of(name)
    if family is None:
        return name
    title = METRICS[family].title
    if family.endswith("=X"):
        return title.removesuffix("X") + f"{far_of(name):g}"
    return title.removesuffix("K") + name.partition("@")[2] if family.endswith("@K") else title


def meaning_of(name: str) -> str:
    """Return a line that explains a metric; "" if the name is unknown."""
    family = family_of(name)
    return "" if family is None else METRICS[family].meaning


def far_of(name: str) -> float:
    """Return X of ``"tar@far=X"``, the share of accepted negatives."""
    return float(name.partition("=")[2])


def _check_parameter(name: str, family: str) -> None:
    if family.endswith("@K"):
        k = name.partition("@")[2]
        if k != str(int(k)) or not 1 <= int(k) < 2**63:
            raise ValueError(f"metric {name!r} has K {k}; expected an integer from 1 to 2**63 - 1")
    elif family.endswith("=X"):
        try:
            is_share = 0 < far_of(name) < 1
        except ValueError:
            is_share = False
        if not is_share:
            raise ValueError(
                f"metric {name!r} needs a FAR between 0 and 1, for example 'tar@far=1e-3'"
            )

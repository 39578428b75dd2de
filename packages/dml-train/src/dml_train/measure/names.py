"""The names of logged values and metrics for readers."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dml_core import METRICS, metric_family, metric_title

PREFIXES = ("evaluation", "validation")


def explain(names: Iterable[str]) -> dict[str, str]:
    """Return title and meaning of these metrics; all Recall@K have one."""
    families = dict.fromkeys(family for name in names if (family := metric_family(name)) is not None)
    return {METRICS[family].title: METRICS[family].meaning for family in families}


def title_of(logged: str) -> str:
    """Return the title of a logged value: Recall@1 of ``"evaluation/recall@1"``; of ``"loss"``, the same."""
    prefix, _, name = logged.partition("/")
    if prefix not in PREFIXES:
        return logged
    title = metric_title(name)
    return title if prefix == "evaluation" else f"{title} of the held-out classes"


def is_count(logged: str) -> bool:
    """Whether a logged value is a number of queries or items, which is the same at every evaluation."""
    return logged.rpartition("/")[2] in ("n_queries", "n_unmatched", "n_gallery")


def repeats(name: str, names: Collection[str]) -> bool:
    """Whether a value, logged or not, repeats another of these: Precision@1 is Recall@1."""
    return name.endswith("precision@1") and name.removesuffix("precision@1") + "recall@1" in names

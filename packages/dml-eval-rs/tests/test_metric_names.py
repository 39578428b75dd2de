"""The table of metrics: all names can be measured, and errors for unknown names suggest a name and
list all names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_eval_rs import METRICS, evaluate, verify
from dml_eval_rs.metrics.names import DEFAULT, check_metrics, family_of, meaning_of, title_of

LABELS = np.arange(40) % 8
X = np.random.default_rng(0).normal(size=(40, 4))
DOCS = Path(__file__).parents[3] / "docs" / "reference"
RETRIEVAL = [name for name, metric in METRICS.items() if metric.kind == "retrieval"]
CLUSTERING = [name for name, metric in METRICS.items() if metric.kind == "clustering"]


def test_each_metric_of_the_table_is_measured_by_its_name() -> None:
    of_k = [name.replace("@K", f"@{k}") for k in (1, 3, 100) for name in RETRIEVAL]
    names = list(dict.fromkeys([*of_k, *CLUSTERING]))
    found = evaluate(X, LABELS, metrics=names)
    assert [*found] == names
    assert all(-0.5 <= value <= 1 for value in found.values())
    assert [*verify(X, LABELS, metrics=("auc", "tar@far=0.25", "eer"))] == [
        "auc",
        "tar@far=0.25",
        "eer",
    ]
    assert {*DEFAULT} <= {*names, "recall@10", "recall@100"}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("recal@1", "'recall@1'"), ("Recall@10", "'recall@10'"), ("map@R", "'map@r'"),
        ("MAP@5", "'map@5'"),
        ("recall_at_1", "'recall@K'"), ("ndgc@7", "'ndcg@7'"),
        ("rprecision", "'r_precision'"),
        ("nmi_mean", "'nmi"), ("recall", "'recall@K'"), ("ir_recall", "'ir_recall@K'"),
        ("map_at_r", "'map@r'"),
    ],
)  # fmt: skip
def test_an_unknown_name_gives_the_nearest_one_and_the_list(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match="metric") as error:
        evaluate(X, LABELS, metrics=["mrr", name])
    message = str(error.value)
    assert repr(name) in message
    assert f"did you mean {nearest}" in message
    assert all(known in message for known in (*RETRIEVAL, *CLUSTERING))


@pytest.mark.parametrize(
    ("measure", "metrics", "error", "message"),
    [
        (evaluate, "xyzzy", ValueError, "unknown metric 'xyzzy'; expected recall@K, precision@K"),
        (evaluate, (), ValueError, "metrics is empty; expected at least one of recall@K"),
        (evaluate, 3, TypeError, "metrics is 3; expected names such as"),
        (evaluate, [3], TypeError, "metrics contains 3; expected names such as 'recall@1'"),
        (evaluate, "recall@0", ValueError,
         r"metric 'recall@0' has K 0; expected an integer from 1 to 2\*\*63 - 1"),
        (evaluate, "recall@01", ValueError, "metric 'recall@01' has K 01"),
        (evaluate, "recall@0.5", ValueError,
         "'recall@0.5' has K '0.5'; expected an integer, for example 'recall@10'"),
        (evaluate, "mrr@r", ValueError, "metric 'mrr@r' has K 'r'"),
        (evaluate, f"ndcg@{2**63}", ValueError, "expected an integer from 1"),
        (evaluate, "tar@far=0.1", ValueError,
         "'tar@far=0.1' is a verification metric, which this function can't"),
        (evaluate, ["auc"], ValueError, "'auc' is a verification metric"),
        (verify, "tar", ValueError, "unknown metric 'tar'; did you mean 'tar@far=X'"),
        (verify, "tar@far=0", ValueError, "metric 'tar@far=0' needs a FAR between 0 and 1"),
        (verify, "tar@far=one", ValueError, "metric 'tar@far=one' needs a FAR"),
        (verify, "recall@1", ValueError,
         "'recall@1' is a retrieval metric, .*; expected one of tar@far=X"),
        (verify, "eerr", ValueError, "unknown metric 'eerr'; did you mean 'eer'"),
    ],
)  # fmt: skip
def test_other_names_are_errors(
    measure: Any, metrics: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        measure(X, LABELS, metrics=metrics)


def test_titles_and_meanings_come_from_the_table() -> None:
    titles = {
        "recall@1": "Recall@1", "map@r": "MAP@R", "map@10": "MAP@10", "map": "mAP", "mrr": "MRR",
        "mrr@10": "MRR@10",
        "tar@far=1e-3": "TAR@FAR=0.001", "nmi": "NMI", "ndcg@100": "nDCG@100",
        "theirs@5": "theirs@5",
    }  # fmt: skip
    assert {name: title_of(name) for name in titles} == titles
    assert meaning_of("recall@7") == METRICS["recall@K"].meaning
    assert meaning_of("theirs@5") == ""
    assert family_of("recall@K") is None
    for name in METRICS:
        example = name.replace("@K", "@5").replace("=X", "=0.1")
        assert family_of(example) == name
        assert title_of(example)
        assert "\n" not in meaning_of(example)


def test_checked_names_are_distinct_and_in_order() -> None:
    assert check_metrics(["nmi", "recall@1", "nmi"]) == ["nmi", "recall@1"]
    assert check_metrics("eer", ("verification",)) == ["eer"]


@pytest.mark.parametrize("name", METRICS)
def test_the_reference_defines_each_metric(name: str) -> None:
    page = "verification.md" if METRICS[name].kind == "verification" else "metrics.md"
    text = (DOCS / page).read_text()
    headings = [
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower())
        for line in text.splitlines()
        if line[:1] == "#"
    ]
    assert METRICS[name].kind in [heading.replace(" ", "-") for heading in headings]
    assert re.search(rf"`{re.escape(name)}[`,]", text), f"{page} lacks `{name}`"

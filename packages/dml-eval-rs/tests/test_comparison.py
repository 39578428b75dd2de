"""Tables that compare models: values, intervals, paired tests against the first model, and Holm's
correction.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import Evaluation, compare, evaluate, verify
from dml_eval_rs.metrics.comparison import holm

LABELS = np.arange(80) % 16
METRICS = ["map@r", "recall@1", "nmi"]


def noisy(scale: float, seed: int) -> np.ndarray:
    centres = np.random.default_rng(0).normal(size=(16, 8))[LABELS]
    return centres + scale * np.random.default_rng(seed).normal(size=(80, 8))


@pytest.fixture(scope="module")
def models() -> dict[str, Evaluation]:
    scales = {"ours": 0.9, "theirs": 1.0, "old_one & worst": 2.5}
    return {
        name: evaluate(noisy(scale, seed), LABELS, metrics=METRICS)
        for seed, (name, scale) in enumerate(scales.items(), 1)
    }


def by_definition(p_values: list[float]) -> list[float]:
    """Correct by Holm (1979), p'_(i) = max over j ≤ i of min(1, (m − j + 1) p_(j)), using a
    loop.
    """
    ascending = sorted(p_values)
    m = len(p_values)
    steps = {}
    for i, p in enumerate(ascending, 1):
        steps[p] = max(min(1.0, (m - j + 1) * ascending[j - 1]) for j in range(1, i + 1))
    return [steps[p] for p in p_values]


def test_holms_correction_is_that_of_a_hand_computation() -> None:
    # In ascending order, p is multiplied by 4, 3, 2 and 1; 1 x 0.04 is raised to the previous
    # value, 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([0.5]) == [0.5]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holms_correction_is_its_definition(p_values: list[float]) -> None:
    assert holm(p_values) == pytest.approx(by_definition(p_values))
    assert all(p <= adjusted <= 1 for p, adjusted in zip(p_values, holm(p_values)))


@pytest.mark.parametrize("by", [None, LABELS], ids=["queries", "classes"])
def test_each_entry_is_that_of_the_results(models: dict[str, Evaluation], by: Any) -> None:
    table = compare(models, level=0.9, seed=5, by=by)
    assert (table.models, table.metrics) == ([*models], METRICS)
    ours, *others = models
    pairs = [*itertools.product(["map@r", "recall@1"], others)]
    comparisons = [
        models[name].compare(models[ours], metric, level=0.9, seed=5, by=by)
        for metric, name in pairs
    ]
    adjusted = by_definition([comparison.p_value for comparison in comparisons])
    for (metric, name), comparison, p in zip(pairs, comparisons, adjusted):
        entry = table[name, metric]
        assert entry.comparison == comparison
        assert entry.adjusted_p == pytest.approx(p)
    for name, metric in itertools.product(models, ["map@r", "recall@1"]):
        entry = table[name, metric]
        assert entry.value == models[name][metric]
        assert entry.interval == models[name].confidence_interval(metric, 0.9, 5, by=by)
    for metric in METRICS:
        assert table[ours, metric].comparison is table[ours, metric].adjusted_p is None
    # Per-query values are not defined for clustering metrics.
    for name in models:
        entry = table[name, "nmi"]
        assert (entry.value, entry.interval, entry.comparison) == (models[name]["nmi"], None, None)


def test_only_the_metrics_that_all_models_have_are_compared(models: dict[str, Evaluation]) -> None:
    other = evaluate(noisy(1, 9), LABELS, metrics=("mrr", "recall@1", "map@r"))
    assert compare({**models, "other": other}).metrics == ["map@r", "recall@1"]
    assert compare(models, "map@r").metrics == ["map@r"]
    assert compare(models, ("recall@1", "map@r")).metrics == ["recall@1", "map@r"]
    with pytest.raises(KeyError, match="mrr"):
        compare({"a": other, **models}, "mrr")


def ends(interval: Any) -> list[str]:
    return f"{interval.low:.4f} to {interval.high:.4f}".split()


def test_the_table_has_a_row_for_each_metric_and_model(models: dict[str, Evaluation]) -> None:
    table = compare(models)
    header, *rows = str(table).splitlines()
    assert header.split("  ")[0] == "metric"
    assert "minus ours" in header
    assert len(rows) == 9
    first = table["ours", "map@r"]
    assert rows[0].split() == ["MAP@R", "ours", f"{first.value:.4f}", *ends(first.interval)]
    assert rows[1].split()[:2] == ["MAP@R", "theirs"]
    worst = table["old_one & worst", "map@r"]
    assert rows[2].split()[-5:] == [
        f"{worst.comparison.difference:+.4f}", *ends(worst.comparison.interval),
        f"{worst.adjusted_p:.4f}",
    ]  # fmt: skip
    assert r"old\_one \& worst" in table.to_latex()
    assert table.to_markdown().count("\n") == 10
    assert table._repr_html_().count("<tr>") == 10


def test_csv_parses_back_to_all_digits(models: dict[str, Evaluation]) -> None:
    table = compare(models)
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert len(rows) == 9
    for row in rows:
        entry = table[row["model"], row["metric"]]
        assert float(row["value"]) == entry.value
        pairs = [
            ("low", entry.interval),
            ("difference_low", entry.comparison and entry.comparison.interval),
        ]
        for name, interval in pairs:
            assert row[name] == ("" if interval is None else repr(interval.low))
        assert row["p_holm"] == ("" if entry.adjusted_p is None else repr(entry.adjusted_p))
        assert row["p"] == ("" if entry.comparison is None else repr(entry.comparison.p_value))


def test_json_has_the_numbers_by_metric_and_model(models: dict[str, Evaluation]) -> None:
    table = compare(models)
    saved = json.loads(json.dumps(table.to_dict()))
    assert [*saved] == METRICS
    theirs = table["theirs", "map@r"]
    assert saved["map@r"]["ours"].keys() == {"value", "low", "high"}
    assert saved["map@r"]["theirs"]["p_holm"] == theirs.adjusted_p
    assert saved["map@r"]["theirs"]["difference"] == theirs.comparison.difference  # type: ignore[union-attr]
    assert saved["nmi"]["theirs"] == {"value": models["theirs"]["nmi"]}


def test_verifications_are_compared_too() -> None:
    names = ["tar@far=0.1", "eer"]
    ours, theirs = (verify(noisy(scale, 1), LABELS, metrics=names) for scale in (0.5, 3))
    table = compare({"ours": ours, "theirs": theirs})
    assert table.metrics == names
    for name in names:
        entry = table["theirs", name]
        assert (entry.value, entry.interval) == (theirs[name], theirs.confidence_interval(name))
        assert entry.comparison == theirs.compare(ours, name)
        assert entry.adjusted_p < 0.05  # type: ignore[operator]


@pytest.mark.parametrize("results", [{}, {"a": 1}, [1, 2]])
def test_fewer_than_two_models_are_refused(results: Any) -> None:
    with pytest.raises(ValueError, match="results has fewer than two models"):
        compare(results)


def test_models_of_other_queries_are_refused(models: dict[str, Evaluation]) -> None:
    with pytest.raises(ValueError, match="have 40 and 80 queries"):
        compare({**models, "short": evaluate(noisy(1, 1)[:40], LABELS[:40], metrics=METRICS)})

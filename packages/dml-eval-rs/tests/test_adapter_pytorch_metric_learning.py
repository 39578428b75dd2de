"""The adapter returns the values of pytorch-metric-learning's `AccuracyCalculator`, if data does
not contain ties.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip(
    "faiss", reason="faiss, which pytorch-metric-learning's calculator needs, is not installed"
)
theirs = pytest.importorskip(
    "pytorch_metric_learning.utils.accuracy_calculator",
    reason="pytorch-metric-learning is not installed",
)
from dml_eval_rs.adapters.pytorch_metric_learning import AccuracyCalculator  # noqa: E402

RETRIEVAL = (
    "mean_average_precision", "mean_average_precision_at_r", "mean_reciprocal_rank",
    "precision_at_1", "r_precision",
)  # fmt: skip
RNG = np.random.default_rng(0)
LABELS = torch.tensor(RNG.integers(0, 9, 150))
LABELS[7] = 77  # item 7 matches no other item
X = torch.tensor((RNG.normal(size=(78, 6))[LABELS] + RNG.normal(size=(150, 6))).astype(np.float32))


def cluster(query: Any, n_clusters: int) -> Any:
    """Return equal clusters to both libraries, since their k-means start from different centres."""
    return torch.arange(len(query)) * 7 % n_clusters


ARRAYS = {
    "own": (X, LABELS),
    "separate": (X[:60], LABELS[:60], X[60:], LABELS[60:]),
    "included": (X[:60], LABELS[:60], X, LABELS, True),
    "included-whole": (X, LABELS, X, LABELS, True),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "by-class": {"return_per_class": True},
    "average-of-classes": {"avg_of_avgs": True},
    "few-neighbours": {"k": 5},
    "one-neighbour": {"k": 1},
    "largest-class": {"k": "max_bin_count"},
    "chosen": {"include": ("AMI", "r_precision", "NMI"), "exclude": ["NMI"]},
    "compared": {"label_comparison_fn": lambda a, b: (a - b).abs() <= 1, "include": RETRIEVAL},
    "compared-by-class": {
        "label_comparison_fn": lambda a, b: (a - b).abs() <= 1, "include": RETRIEVAL, "k": 40,
        "return_per_class": True
    },
}  # fmt: skip


@pytest.mark.parametrize("arrays", ARRAYS)
@pytest.mark.parametrize("options", OPTIONS)
def test_the_figures_are_theirs(arrays: str, options: str) -> None:
    shared = {**OPTIONS[options], "kmeans_func": cluster}
    right = theirs.AccuracyCalculator(**shared, device=torch.device("cpu")).get_accuracy(
        *ARRAYS[arrays]
    )
    found = AccuracyCalculator(**shared).get_accuracy(*ARRAYS[arrays])
    assert list(found) == list(right)
    for name, value in right.items():
        # pytorch-metric-learning computes reciprocal ranks in float32.
        assert found[name] == pytest.approx(
            value, abs=1e-6 if name == "mean_reciprocal_rank" else 1e-12
        ), name


def test_metrics_are_chosen_for_a_call() -> None:
    calculator = AccuracyCalculator(exclude=("NMI", "AMI"))
    assert list(calculator.get_accuracy(X, LABELS, include=("precision_at_1",))) == [
        "precision_at_1"
    ]
    assert calculator.get_curr_metrics() == ["precision_at_1"]
    assert set(calculator.get_accuracy(X, LABELS)) == set(RETRIEVAL)
    assert calculator.requires_clustering() == ["NMI", "AMI"]
    assert calculator.requires_knn() == list(RETRIEVAL)
    assert calculator.description() == ""


def test_without_any_match_the_figures_are_nan() -> None:
    arrays = (X[:5], torch.arange(5), X[5:], torch.arange(5, 150))
    found = AccuracyCalculator(include=RETRIEVAL, return_per_class=True).get_accuracy(*arrays)
    right = theirs.AccuracyCalculator(include=RETRIEVAL, return_per_class=True).get_accuracy(
        *arrays
    )
    for name in RETRIEVAL:
        np.testing.assert_equal(found[name], right[name])


def test_the_clusters_are_those_of_kmeans() -> None:
    found = AccuracyCalculator(include=("NMI", "AMI")).get_accuracy(X, LABELS)
    right = theirs.AccuracyCalculator(include=("NMI", "AMI")).get_accuracy(X, LABELS)
    for name in ("NMI", "AMI"):
        assert found[name] == pytest.approx(right[name], abs=0.15)  # k-means centres differ


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "name": (lambda: AccuracyCalculator(include=("map",)), ValueError,
        "each of include is 'map'; expected one of"),
    "string": (lambda: AccuracyCalculator(exclude="NMI"), TypeError,
        "exclude is a str; expected a tuple or list"),
    "knn": (lambda: AccuracyCalculator(knn_func=cluster), TypeError, 'use similarity="cosine"'),
    "both": (lambda: AccuracyCalculator(avg_of_avgs=True, return_per_class=True), ValueError,
        "expected only one"),
    "k": (lambda: AccuracyCalculator(k=0), ValueError, "k is 0; expected at least 1"),
    "clusters": (lambda: AccuracyCalculator(label_comparison_fn=torch.eq), ValueError,
        r"exclude=\('NMI', 'AMI'\)"),
    "not-included": (
        lambda: AccuracyCalculator().get_accuracy(X[:5], LABELS[:5], X[1:], LABELS[1:], True,
            include=RETRIEVAL),
        ValueError, "reference item 0 of 149 is not query 0; expected the 5 queries to be",
    ),
    "too-few": (
        lambda: AccuracyCalculator().get_accuracy(X[:5], LABELS[:5], X[:3], LABELS[:3], True),
        ValueError, "reference item 3 of 3 is not query 3",
    ),
    "shape": (
        lambda: AccuracyCalculator(label_comparison_fn=lambda a, b: a,
            include=RETRIEVAL).get_accuracy(X, LABELS),
        ValueError,
        r"label_comparison_fn returned shape \(1,\), but there are 150 reference labels",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_errors_say_what_came_and_what_was_expected(case: str) -> None:
    call, error, message = BAD[case]
    with pytest.raises(error, match=message):
        call()

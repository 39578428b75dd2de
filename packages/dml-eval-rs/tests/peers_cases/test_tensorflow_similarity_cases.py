"""The cases of TensorFlow Similarity's retrieval metrics.

tensorflow/similarity dc506d6, tests/retrieval_metrics/: four queries of the classes 1, 1, 1 and 0, and whether each
of three neighbours matches. Their R comes as an argument; items beyond the neighbours make up the rest of it here,
where no figure sees them.
"""

from __future__ import annotations

import numpy as np
import pytest
from eval_support.rankings import evaluate_ranks

from dml_eval_rs import Evaluation

CLASSES = [1, 1, 1, 0]
MATCHES = [[1, 2], [1, 2], [1, 2], [3]]


def measured(metric: str, more: dict[int, list[int]] | None = None) -> Evaluation:
    """Evaluate the four rankings; `more` adds the ranks of a class's matches beyond the neighbours."""
    ranks = [own + (more or {}).get(label, []) for own, label in zip(MATCHES, CLASSES)]
    return evaluate_ranks(ranks, 100, metrics=metric)


def macro(found: Evaluation, name: str) -> float:
    return float(np.mean(list(found.per_class(name, np.array(CLASSES)).values())))


@pytest.mark.parametrize(
    ("name", "micro", "of_classes"),
    [
        ("precision@3", 0.583333333, 0.5),  # test_precision_at_k.py
        ("recall@2", 0.75, 0.5),  # test_recall_at_k.py: a hit, not a share
        ("ndcg@2", 0.75, 0.5),  # test_bndcg.py, test_compute_at_k and test_compute_macro
    ],
)
def test_micro_and_macro_averages_are_theirs(name: str, micro: float, of_classes: float) -> None:
    found = measured(name)
    assert found[name] == pytest.approx(micro, abs=1e-5)
    assert macro(found, name) == pytest.approx(of_classes, abs=1e-5)


def test_map_at_k_is_average_precision_at_k_but_divided_by_r() -> None:
    """test_map_at_k.py, `test_compute`: R is 3 for class 1 and 10 for class 0, K is 3; we divide by min(K, R)."""
    found = measured("map@3", {1: [50], 0: list(range(50, 59))})
    numbers = np.array([3, 3, 3, 10])
    theirs = found.per_query["map@3"] * np.minimum(3, numbers) / numbers
    assert theirs.mean() == pytest.approx(0.50833333332, abs=1e-9)


def test_map_clipped_at_r_is_map_at_r() -> None:
    """test_map_at_k.py, `test_clip_at_r`: two rankings hit at place 4, with an R of 4 and of 3."""
    found = evaluate_ranks([[4, 50, 51, 52], [4, 50, 51]], 100, metrics="map@r")
    assert found.per_query["map@r"].tolist() == [0.0625, 0.0]
    assert found["map@r"] == pytest.approx(0.03125, abs=1e-12)


def test_a_distance_threshold_excludes_what_lies_beyond() -> None:
    """test_bndcg.py, `test_compute_distance_threshold`: the third neighbour is farther than 0.1 and counts as absent.

    In class 0 the only match is beyond, so its nDCG is 0: a query without a match is a miss.
    """
    found = evaluate_ranks([[r for r in ranks if r <= 2] for ranks in MATCHES], 2, metrics="ndcg@3")
    assert found["ndcg@3"] == pytest.approx(0.75, abs=1e-9)
    assert found.n_unmatched == 1

"""The evaluator of embeddings and of codes on several ranks: every rank gets the metrics of one process, to the bit."""

from __future__ import annotations

import pytest
from train_support.measuring_ranks import measure, measure_matches, measure_unmatched
from train_support.sharded_ranks import in_ranks

from dml_eval_rs.evaluators import Evaluator

WITH_CLUSTERS = ("recall@1", "recall@5", "r_precision", "map@r", "nmi", "ami", "ari")
OF_RANKINGS = (
    *("recall@1", "recall@5", "precision@1", "precision@5", "r_precision", "map@r", "mrr"),
    *("map@5", "ndcg@5", "ir_recall@5", "mrr@5", "map", "minp"),
)
EVALUATORS = (
    Evaluator(metrics=WITH_CLUSTERS),
    Evaluator(similarity="euclidean", ties="expected"),
    Evaluator(metrics=WITH_CLUSTERS, similarity="hamming"),
)


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_the_evaluation_and_get_the_metrics_of_one(world_size):
    in_ranks(world_size, measure, EVALUATORS)


def test_ranks_share_evaluations_under_groups_and_lists():
    asked = {"metrics": OF_RANKINGS, "unmatched": "zero"}
    evaluators = (
        Evaluator(**asked),
        Evaluator(ties="expected", similarity="euclidean"),
        Evaluator(**asked, similarity="hamming", ties="pessimistic"),
    )
    in_ranks(2, measure_matches, evaluators)


def test_labels_without_a_match_are_refused_on_every_rank():
    in_ranks(2, measure_unmatched, (Evaluator(), Evaluator(similarity="hamming")))

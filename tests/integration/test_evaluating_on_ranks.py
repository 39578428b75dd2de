"""The exact and the Hamming evaluator on several ranks: every rank gets the metrics of one process, to the bit."""

from __future__ import annotations

import pytest
from train_support.measuring_ranks import measure, measure_relations, measure_unmatched
from train_support.sharded_ranks import in_ranks

from dml_eval_rs.evaluators import ExactEvaluator, HammingEvaluator

EVALUATORS = (
    ExactEvaluator(recall_at=(1, 5), nmi=True),
    ExactEvaluator(similarity="euclidean", ties="expected"),
    HammingEvaluator(recall_at=(1, 5), nmi=True),
)


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_the_evaluation_and_get_the_metrics_of_one(world_size):
    in_ranks(world_size, measure, EVALUATORS)


def test_ranks_share_evaluations_under_groups_and_lists():
    metrics = {
        "precision_at": (1, 5),
        "average_precision_at": (5,),
        "ndcg_at": (5,),
        "recall_share_at": (5,),
        "reciprocal_rank_at": (5,),
        "average_precision": True,
        "unmatched": "zero",
    }
    in_ranks(
        2,
        measure_relations,
        (
            ExactEvaluator(recall_at=(1, 5), **metrics),
            ExactEvaluator(ties="expected", similarity="euclidean"),
            HammingEvaluator(recall_at=(1, 5), ties="pessimistic", **metrics),
        ),
    )


def test_labels_without_a_match_are_refused_on_every_rank():
    in_ranks(2, measure_unmatched, (ExactEvaluator(), HammingEvaluator()))

"""Ranks should embed and evaluate separate parts, and return the bits of a single process."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_support.measuring_ranks import (
    embed_together,
    exchange,
    measure,
    measure_alone,
    measure_unmatched,
)
from train_support.sharded_ranks import in_ranks

from dml_eval_rs.evaluators import Evaluator
from dml_train.measure.embed import items_of_rank
from dml_train.ranks.ranks import Ranks


def test_embeddings_of_several_ranks_are_those_of_one_to_the_bit():
    in_ranks(3, embed_together)


@given(num_items=st.integers(0, 5000), world_size=st.integers(1, 9))
def test_ranks_share_full_passes_evenly_and_embed_every_item_once(num_items, world_size):
    parts = [items_of_rank(num_items, Ranks(rank, world_size)) for rank in range(world_size)]
    assert np.array_equal(np.concatenate(parts), np.arange(num_items))
    assert all(part[0] % 256 == 0 for part in parts if len(part))
    assert max(map(len, parts)) <= -(-num_items // (256 * world_size)) * 256


def test_an_evaluator_that_cannot_share_its_work_runs_on_the_first_rank():
    in_ranks(2, measure_alone)


def test_ranks_exchange_rows_and_counts():
    in_ranks(3, exchange)


def test_ranks_of_one_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert [Ranks(local_world_size=n).threads for n in (1, 2, 3, 8, 16)] == [8, 4, 2, 1, 1]


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
    in_ranks(world_size, measure, EVALUATORS, False)


def test_ranks_share_evaluations_under_groups_and_lists():
    asked = {"metrics": OF_RANKINGS, "unmatched": "zero"}
    evaluators = (
        Evaluator(**asked),
        Evaluator(ties="expected", similarity="euclidean"),
        Evaluator(**asked, similarity="hamming", ties="pessimistic"),
    )
    in_ranks(2, measure, evaluators, True)


def test_labels_without_a_match_are_refused_on_every_rank():
    in_ranks(2, measure_unmatched, (Evaluator(), Evaluator(similarity="hamming")))

"""What a rank does in the tests of shared measuring: in a module of its own, which rank processes can import."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_world import TinyEvaluator, TinySplit

from dml_core import DmlError, ShardedEvaluator
from dml_eval_rs.plugin import ExactEvaluator, HammingEvaluator
from dml_train.measure.embed import embed, items_of_rank
from dml_train.measure.evaluate import Embedded, evaluate, evaluate_on_ranks
from dml_train.networks.backbones import SmallConv
from dml_train.networks.model import EmbeddingHead, EmbeddingModel
from dml_train.ranks.ranks import join_ranks


def some_embeddings() -> Embedded:
    """Classes of a few and of many items, and similarities that are equal."""
    rng = np.random.default_rng(0)
    labels = np.concatenate([np.repeat(np.arange(40), 5), np.full(100, 40)])
    x = rng.integers(-2, 3, (300, 12)) + rng.integers(-1, 2, (41, 12))[labels] + 0.5
    return Embedded(x.astype(np.float32), labels)


def evaluators() -> list[Any]:
    return [
        ExactEvaluator(recall_at=(1, 5), nmi=True),
        ExactEvaluator(similarity="euclidean", ties="expected"),
        HammingEvaluator(recall_at=(1, 5), nmi=True),
    ]


def measure() -> None:
    """Every rank gets, to the bit, what one process measures."""
    whole = some_embeddings()
    queries = slice(0, 90)
    separate = Embedded(whole.embeddings[queries], whole.labels[queries], whole.embeddings, whole.labels)
    with join_ranks(120) as ranks:
        assert ranks.world_size > 1
        for evaluator in evaluators():
            assert isinstance(evaluator, ShardedEvaluator)
            for embedded in (whole, separate):
                assert (
                    evaluate_on_ranks(ranks, evaluator, embedded).metrics
                    == evaluate(evaluator, embedded).to_dict()
                )


def embed_together() -> None:
    """Ranks get, to the bit, the embeddings of one process: more passes than ranks, as many, and fewer."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = EmbeddingModel(SmallConv(1, widths=[32, 64], stride=2), EmbeddingHead(64, 64)).eval()
    with join_ranks(120) as ranks:
        for num_classes in (200, 40, 1):
            split = TinySplit(num_classes, 8, seed=0)
            alone = embed(model, split, device=torch.device("cpu"))
            part = embed(model, split, device=torch.device("cpu"), items=items_of_rank(len(split), ranks))
            assert np.array_equal(ranks.all_gather(part), alone)


def measure_alone() -> None:
    """An evaluator that can't share its work runs on the first rank, which alone has the arrays."""
    whole = some_embeddings()
    with join_ranks(120) as ranks:
        embedded = whole if ranks.is_first else Embedded(whole.embeddings[:0], whole.labels)
        expected = evaluate(TinyEvaluator(), whole).to_dict()
        measured = evaluate_on_ranks(ranks, TinyEvaluator(), embedded)
        assert measured.metrics == expected
        assert (measured.evaluation is not None) == ranks.is_first


def be_refused() -> None:
    """What the evaluator refuses, it refuses on every rank; they can go on together."""
    whole = some_embeddings()
    unmatched = Embedded(whole.embeddings, np.arange(300))
    with join_ranks(120) as ranks:
        for evaluator in (ExactEvaluator(), HammingEvaluator()):
            with pytest.raises(DmlError, match="can't evaluate: none of the 300 queries has a match"):
                evaluate_on_ranks(ranks, evaluator, unmatched)
            evaluate_on_ranks(ranks, evaluator, whole)


def exchange() -> None:
    """Rows of any number and kind come in the order of the ranks; counts are summed."""
    with join_ranks(120) as ranks:
        for shape, dtype in (((), np.float64), ((3,), np.float32)):
            rows = [np.full((2 * rank, *shape), rank, dtype) for rank in range(ranks.world_size)]
            gathered = ranks.all_gather(rows[ranks.rank])
            assert gathered.dtype == dtype
            assert np.array_equal(gathered, np.concatenate(rows))
        counts = np.array([ranks.rank, 1])
        expected = [sum(range(ranks.world_size)), ranks.world_size]
        assert ranks.all_reduce(counts).tolist() == expected
        assert counts.tolist() == [ranks.rank, 1]  # what was given stays

"""Functions that ranks run in tests of shared embedding and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dml_core import DmlError, Labels, PeersEvaluator, Relevance
from dml_train.measure.embed import embed, items_of_rank
from dml_train.measure.evaluate import Embedded, evaluate, evaluate_on_ranks
from dml_train.networks.backbones import SmallConv
from dml_train.networks.model import EmbeddingHead, EmbeddingModel
from dml_train.ranks.ranks import join_ranks
from train_support.tiny_world import TinyEvaluator, TinySplit


def some_embeddings() -> Embedded:
    """Make classes with 5 or 100 items, and ties between similarities."""
    rng = np.random.default_rng(0)
    labels = np.concatenate([np.repeat(np.arange(40), 5), np.full(100, 40)])
    x = rng.integers(-2, 3, (300, 12)) + rng.integers(-1, 2, (41, 12))[labels] + 0.5
    return Embedded(x.astype(np.float32), labels)


def matched_embeddings() -> list[Embedded]:
    """Return queries and galleries with groups, with lists of graded matches, and with ignored
    items.
    """
    alone, queries = some_embeddings(), slice(0, 90)
    labels = alone.labels
    groups = np.array(["c1", "c2", "c3"])[np.arange(300) % 3]
    rng = np.random.default_rng(1)
    pairs_QG = rng.random((300, 300)) < 0.05
    offsets = np.concatenate([[0], np.cumsum(pairs_QG.sum(axis=1))])
    lists = offsets, np.nonzero(pairs_QG)[1]
    graded = Relevance(*lists, rng.integers(0, 3, len(lists[1])))
    ignored_QG = rng.random((90, 300)) < 0.1
    ignored = np.concatenate([[0], np.cumsum(ignored_QG.sum(axis=1))]), np.nonzero(ignored_QG)[1]
    separate = Embedded(
        alone.embeddings[queries], alone.labels[queries], alone.embeddings, alone.labels
    )
    return [
        replace(alone, matches=Labels(labels, groups)),
        replace(
            separate,
            matches=Labels(labels[queries], groups[queries]),
            gallery_matches=Labels(labels, groups),
        ),
        replace(alone, matches=graded),
        replace(
            separate,
            matches=Labels(labels[queries], ignored=ignored),
            gallery_matches=Labels(labels),
        ),
    ]


def measure(evaluators: Sequence[Any], matched: bool) -> None:
    """Check that every rank gets the same bits as one process; if `matched`, for groups and lists
    of matches.
    """
    embeddings = matched_embeddings()
    plain = [replace(embedded, matches=None, gallery_matches=None) for embedded in embeddings]
    with join_ranks(120) as ranks:
        assert ranks.world_size > 1
        for evaluator in evaluators:
            assert isinstance(evaluator, PeersEvaluator)
            for embedded, without in zip(embeddings if matched else plain[:2], plain):
                measured = evaluate_on_ranks(ranks, evaluator, embedded).metrics
                assert measured == evaluate(evaluator, embedded).to_dict()
                assert not matched or measured != evaluate(evaluator, without).to_dict()


def embed_together() -> None:
    """Check that ranks compute the bits of a single process, using different numbers of passes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = EmbeddingModel(SmallConv(1, widths=[32, 64], stride=2), EmbeddingHead(64, 64)).eval()
    with join_ranks(120) as ranks:
        for num_classes in (200, 40, 1):
            split = TinySplit(num_classes, 8, seed=0)
            alone = embed(model, split, device=torch.device("cpu"))
            part = embed(
                model, split, device=torch.device("cpu"), items=items_of_rank(len(split), ranks)
            )
            assert np.array_equal(ranks.all_gather(part), alone)


def measure_alone() -> None:
    """Check that an evaluator that can't share work is used on the first rank; only this rank is
    given the arrays.
    """
    complete = some_embeddings()
    with join_ranks(120) as ranks:
        embedded = (
            complete if ranks.is_first else Embedded(complete.embeddings[:0], complete.labels)
        )
        expected = evaluate(TinyEvaluator(), complete).to_dict()
        measured = evaluate_on_ranks(ranks, TinyEvaluator(), embedded)
        assert measured.metrics == expected
        assert (measured.evaluation is not None) == ranks.is_first


def measure_unmatched(evaluators: Sequence[Any]) -> None:
    """Check that an error is raised on all ranks when labels do not match, after which ranks can
    evaluate again.
    """
    matched = some_embeddings()
    unmatched = Embedded(matched.embeddings, np.arange(300))
    with join_ranks(120) as ranks:
        for evaluator in evaluators:
            with pytest.raises(
                DmlError, match="can't evaluate: none of the 300 queries has a match"
            ):
                evaluate_on_ranks(ranks, evaluator, unmatched)
            evaluate_on_ranks(ranks, evaluator, matched)


def exchange() -> None:
    """Check that rows of any number and dtype are gathered in the order of the ranks; counts should
    be summed.
    """
    with join_ranks(120) as ranks:
        for shape, dtype in (((), np.float64), ((3,), np.float32)):
            rows = [np.full((2 * rank, *shape), rank, dtype) for rank in range(ranks.world_size)]
            gathered = ranks.all_gather(rows[ranks.rank])
            assert gathered.dtype == dtype
            assert np.array_equal(gathered, np.concatenate(rows))
        counts = np.array([ranks.rank, 1])
        expected = [sum(range(ranks.world_size)), ranks.world_size]
        assert ranks.all_reduce(counts).tolist() == expected
        assert counts.tolist() == [ranks.rank, 1]  # the argument is unchanged

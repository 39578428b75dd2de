"""Hard negatives mined between epochs: in a run, resumed to the same bits, using loaders and
ranks.
"""

from __future__ import annotations

import pytest
from train_support.run_traces import check_same_bits, losses, same, stopped
from train_support.sharded_ranks import in_ranks, train_until
from train_support.tiny_world import TinyEvaluator, provide

from dml_core import DmlError
from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint

# Six steps per epoch.
TABLES = {
    "training": {"steps": 24},
    "sampler": {"name": "hard-negatives", "candidates": 3},
    "logging": {"every": 1},
}


@pytest.mark.parametrize(
    ("mine_every", "stop", "workers"),
    [(1, 18, 1), (1, 13, 0), (2, 15, 0)],
    ids=[
        "inside a mined epoch, with a loader",
        "before mining",
        "in an epoch that keeps its negatives",
    ],
)
def test_a_stopped_run_resumes_to_the_same_bits(run, registry, tmp_path, mine_every, stop, workers):
    tables = {**TABLES, "sampler": {**TABLES["sampler"], "mine_every": mine_every}}
    whole = run(where=tmp_path / "whole", **tables)
    with stopped(registry, stop):
        run(where=tmp_path / "cut", **tables)
    tables["training"] = {"steps": 24, "workers": workers}
    cut = run(where=tmp_path / "cut", resume=True, **tables)
    assert check_same_bits(whole, cut).state()["negatives"].shape == (48, 3)


def test_batches_change_where_negatives_are_mined(run, tmp_path):
    mined = losses(run(where=tmp_path / "mined", **TABLES))
    balanced = losses(
        run(where=tmp_path / "balanced", **TABLES | {"sampler": {"name": "class-balanced"}})
    )
    assert mined[:6] == balanced[:6]
    assert mined[6:] != balanced[6:]


def test_two_ranks_mine_as_one_does(tmp_path, tiny_document):
    tables = {**TABLES, "training": {"steps": 14}, "backbone": {"dropout": 0.0, "norm": False}}
    document = tiny_document(**tables)
    train_until(document, tmp_path / "one", 99)
    in_ranks(2, train_until, document, tmp_path / "two", 99)
    one, two = (
        checkpoint.newest_intact(tmp_path / name / "checkpoints") for name in ("one", "two")
    )
    assert same(one.state()["negatives"], two.state()["negatives"])
    expected = losses(RunFolder(tmp_path / "one"))
    assert len(expected) == 14
    # Ranks sum in a different order.
    assert losses(RunFolder(tmp_path / "two")) == pytest.approx(expected, rel=1e-4)


class Silent(TinyEvaluator):
    """An evaluator that doesn't mine."""

    hard_negatives = None


def test_an_evaluator_that_finds_no_negatives_is_refused_before_training(run, registry, out):
    provide(registry, "evaluators", "silent", Silent)
    message = "'hard-negatives' mines hard negatives, which the evaluator 'silent' doesn't"
    with pytest.raises(DmlError, match=message):
        run(**TABLES, evaluation={"name": "silent"})
    assert not out.exists()


def test_embeddings_that_cannot_be_mined_are_one_message(run, monkeypatch):
    def refuse(*arguments, **options):
        raise ValueError("row 3 is all zeros")

    monkeypatch.setattr(TinyEvaluator, "hard_negatives", refuse)
    with pytest.raises(DmlError, match="can't mine negatives: row 3 is all zeros"):
        run(**TABLES)

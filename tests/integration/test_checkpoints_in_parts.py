"""Faults around checkpoints in parts, which runs with sharded class weights write. See also
test_sharded_training.
"""

from __future__ import annotations

import resource
import signal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from train_support.sharded_ranks import in_ranks, unite
from train_support.tiny_world import make_document, make_registry

import dml_losses.plugin
from dml_core import DmlError
from dml_train.ranks.parts import write_part
from dml_train.ranks.ranks import Ranks, join_ranks
from dml_train.recipe.checking import parse
from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint
from dml_train.training.build import build
from dml_train.training.trainer import Trainer

TABLES = {
    "backbone": {"dropout": 0.0, "norm": False},
    "dataset": {"num_classes": 7},
    "sampler": {"classes_per_batch": 3, "images_per_class": 4},  # 12 images, for 1, 2 or 3 ranks
    "logging": {"every": 1},
}
CENTERS = {"name": "sub-center-arc-face", "centers_per_class": 2, "scale": 8.0}


def make_trainer(ranks: Ranks, out: Path) -> Trainer:
    """Make a trainer that saves in parts; set `steps_done` by hand."""
    registry = make_registry()
    registry.plugins.register(dml_losses.plugin, distribution="dml-losses")
    document = make_document(
        **{**TABLES, "logging": {"loggers": []}},
        loss={"name": "sharded-classes", "loss": CENTERS},
        optimizer={"name": "sgd", "momentum": 0.9},
        checkpoints={"keep": 3},
    )
    experiment = build(parse(document, registry), registry, ranks)
    out.mkdir(exist_ok=True)
    return Trainer(experiment, RunFolder(out), registry, Console(file=StringIO()), ranks)


def save_at(trainer: Trainer, step: int, value: float) -> None:
    trainer.steps_done = step
    with torch.no_grad():
        trainer.experiment.loss.loss.class_weights.fill_(value)
    trainer.save()


def meet_faults(out: Path) -> None:
    """Save when a rank's disk is full or rows are not finite; load when a part is missing."""
    with join_ranks(60) as ranks:
        _meet_faults(ranks, out)


def _meet_faults(ranks: Ranks, out: Path) -> None:
    trainer = make_trainer(ranks, out)
    rank, weights = ranks.rank, trainer.experiment.loss.loss.class_weights
    save_at(trainer, 1, 1.0 + rank)
    save_at(trainer, 2, 3.0 + rank)

    if rank == 1:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    with pytest.raises(
        DmlError, match=r"can't save the checkpoint of step 3 .* step 2 .* is intact"
    ):
        save_at(trainer, 3, 5.0)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    for spoilt, name in (
        (weights, "the loss's loss.class_weights"),
        (None, "the optimizer's momentum_buffer"),
    ):
        if rank == 1:
            moments = trainer.experiment.optimizer.torch.state[weights]["momentum_buffer"]
            (moments if spoilt is None else spoilt).data[-1, -1] = torch.nan
        with pytest.raises(
            DmlError, match=rf"after step 3 {name} isn't finite, so a checkpoint is"
        ):
            trainer.save()
        if rank == 1:
            (moments if spoilt is None else spoilt).data[-1, -1] = 0.0
    assert ranks.run_on_first(
        lambda: sorted(path.name for path in (out / "checkpoints").iterdir())
    ) == [
        "step-00000001",
        "step-00000002",
    ]

    def lose() -> None:
        (part,) = (out / "checkpoints" / "step-00000002").glob("parts/rank-00001-*")
        part.unlink()

    ranks.run_on_first(lose)
    again = make_trainer(ranks, out)
    assert again.steps_done == 1
    assert (again.experiment.loss.loss.class_weights == 1.0 + rank).all()
    save_at(again, 2, 7.0 + rank)


@pytest.mark.slow
def test_a_full_disk_nan_and_a_missing_part_of_one_rank_are_met_by_all(tmp_path):
    in_ranks(2, meet_faults, tmp_path / "run")
    newest = checkpoint.newest_intact(tmp_path / "run" / "checkpoints")
    assert newest.step == 2
    weights = unite(newest)["loss"]["loss.class_weights"]
    assert weights.tolist() == [[7.0] * 8] * 6 + [[8.0] * 8] * 8  # 3 and 4 classes of 2 centers


def die_while_writing(out: Path) -> None:
    """Save; then let the second rank die while it writes a part of the next checkpoint."""

    def write_some(path: Path, rows: Any) -> None:
        write_part(path, rows)
        with path.open("r+b") as file:
            file.truncate(100)
        signal.raise_signal(signal.SIGKILL)

    def save_twice() -> None:
        with join_ranks(20) as ranks:
            trainer = make_trainer(ranks, out)
            save_at(trainer, 1, 1.0)
            if ranks.rank == 1:
                checkpoint.write_part = write_some
            save_at(trainer, 2, 2.0)

    with pytest.raises(DmlError, match="lost another rank"):
        save_twice()


@pytest.mark.slow
def test_a_rank_killed_while_it_writes_its_part_leaves_the_previous_checkpoint(tmp_path):
    in_ranks(2, die_while_writing, tmp_path, codes=[0, -signal.SIGKILL])
    folder = tmp_path / "checkpoints"
    assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == [
        "step-00000001"
    ]
    trainer = make_trainer(Ranks(), tmp_path)
    assert trainer.steps_done == 1
    save_at(trainer, 2, 2.0)
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000001", "step-00000002"]

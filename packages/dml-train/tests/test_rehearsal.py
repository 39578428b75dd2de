"""If settings can't work, errors must be raised before a run's folder is made."""

from __future__ import annotations

import pytest
import tomli_w
import torch
from torch import nn
from train_support.tiny_world import provide

from dml_core import DmlError, InvalidOption
from dml_core import registry as installed
from dml_train.recipe.checking import parse
from dml_train.recipe.loading import load_recipe
from dml_train.training.build import build
from dml_train.training.rehearsal import rehearse
from dml_train.training.run import check_recipe, train
from dml_train.training.scheduling import check_loss_schedules


class Faulty(nn.Module):
    """A loss with a forward that can fail in four ways."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self.fault == "raises":
            raise IndexError("out of range")
        if self.fault == "each":
            return embeddings.sum(dim=1)
        if self.fault == "number":
            return 3.0
        return embeddings @ torch.ones(3)


class Greedy(nn.Module):
    """A loss with an argument that the trainer doesn't pass."""

    def forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, margins: torch.Tensor
    ) -> torch.Tensor:
        return embeddings.sum()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", "IndexError: out of range"),
        ("multiplies", "the first step would fail: RuntimeError"),
        ("each", r"Faulty returned a tensor of shape \(2,\); expected a scalar tensor"),
        ("number", "Faulty returned 3.0; expected a scalar tensor"),
    ],
)
def test_a_loss_that_fails_is_named_before_training(
    registry, tiny_document, tmp_path, quiet, fault, message
):
    provide(registry, "losses", "faulty", Faulty)
    document = tiny_document() | {"loss": {"name": "faulty", "fault": fault}}
    recipe = parse(document, registry)
    with pytest.raises(DmlError, match=message):
        train(recipe, tmp_path / "run", registry=registry, console=quiet)
    assert not (tmp_path / "run").exists()
    with pytest.raises(DmlError, match=message):
        check_recipe(recipe, registry=registry, console=quiet)


def test_a_check_finds_what_a_run_would_and_starts_none(dml, registry, tiny_document, tmp_path):
    (tmp_path / "tiny.toml").write_bytes(tomli_w.dumps(tiny_document()).encode())
    before = sorted(tmp_path.rglob("*"))
    train = ["train", tmp_path / "tiny.toml", "--check"]
    output = dml(*train).output
    assert "the recipe is ready to train; no run was started" in output
    assert " steps on cpu; then " in output
    assert dml(*train, "--out", tmp_path / "run")
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes").write_text("mine")
    assert "It contains files but no run" in dml(*train, "--out", tmp_path / "run", code=2).output


def test_a_loss_that_takes_other_arguments_is_named_with_them(run, registry, out):
    provide(registry, "losses", "greedy", Greedy)
    expected = (
        r"the first step would fail: TypeError: Greedy.forward\(\) missing 1 .* argument: 'margins'"
    )
    with pytest.raises(DmlError, match=expected):
        run(loss={"name": "greedy"})
    assert not out.exists()


def test_a_rehearsal_changes_nothing(registry, tiny_document):
    experiment = build(parse(tiny_document(embedding={"batch_norm": True}), registry), registry)
    before = {
        name: tensor.clone()
        for module in (experiment.model, experiment.loss)
        for name, tensor in module.state_dict().items()
        if name != "calls"  # TinyLoss counts calls in evaluation, too
    }
    rehearse(experiment)
    after = {**experiment.model.state_dict(), **experiment.loss.state_dict()}
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert all(
        p.grad is None for p in [*experiment.model.parameters(), *experiment.loss.parameters()]
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optimizer.lr=inf"], "optimizer.lr is inf"),
        (["training.ema_decay=nan"], "training.ema_decay is nan"),
        (["embedding.dim=10000000000000"], "doesn't fit into memory"),
        (['evaluation.metrics=["recall@0"]'], "metric 'recall@0' has K 0"),
        (['evaluation.metrics=["recal@1"]'], "unknown metric 'recal@1'; did you mean 'recall@1'"),
        (['evaluation.metrics=["nmi"]', "evaluation.n_clusters=0"], "n_clusters is 0"),
        (["evaluation.n_clusters=3"], "n_clusters is 3, but no clustering metric is requested"),
        (["evaluation.similarity=cosin"], "similarity"),
        (
            ["validation.class_fraction=0.2", "evaluation.every=100"],
            "no evaluation would select weights",
        ),
        (
            ["schedule.'loss.temperature'={kind='linear', start=0.1, end=0.0}"],
            r"reaches 0: .*temperature is 0",
        ),
        (
            ["schedule.'loss.temperature'={kind='step', values=[0.1, -1.0], milestones=[9]}"],
            "reaches -1",
        ),
        (["backbone.levels=2"], "option 'levels' is 2, of type int"),
        (["backbone.depth=10000000000000"], "at most 1000 convolutions"),
        (["sampler.images_per_class=9223372036854775807"], "expected at most 1000000"),
        (
            ["schedule.'optimizer.lr'.end=['x']"],
            r"end of a cosine schedule is \['x'\]; expected a number",
        ),
        (["training.steps=1" + 400 * "0"], "training.steps is 1000.*less than or equal to"),
        (
            ["training.device=cuda:99999999999"],
            "training.device is 'cuda:99999999999'; expected one of",
        ),
        (["training.device=cuda:00"], "training.device is 'cuda:00'; did you mean 'cuda:0'"),
    ],
    ids=lambda part: str(part)[:60],
)
def test_settings_that_would_fail_after_training_are_refused_before(
    tmp_path, quiet, overrides, message
):
    with pytest.raises((DmlError, InvalidOption), match=message):
        train(load_recipe("glyphs-tiny", overrides, installed()), tmp_path / "run", console=quiet)
    assert not (tmp_path / "run").exists()


def test_a_schedule_of_a_sharded_loss_is_checked_on_more_than_two_ranks(monkeypatch):
    for module in ("training.scheduling", "class_weights", "ranks.sharded_classes"):
        package = "dml_train" if module.startswith("training") else "dml_losses"
        monkeypatch.setattr(f"{package}.{module}.rank_and_world_size", lambda: (3, 4))
    table = "schedule.'loss.loss.temperature'={kind='step', values=[0.1, %s], milestones=[9]}"
    sharded = "loss={name='sharded-classes', loss={name='norm-softmax', temperature=0.1}}"
    good, bad = (load_recipe("glyphs-tiny", [sharded, table % value]) for value in (0.2, -1.0))
    check_loss_schedules(good.schedule, good.loss, installed())
    with pytest.raises(InvalidOption, match="reaches -1"):
        check_loss_schedules(bad.schedule, bad.loss, installed())

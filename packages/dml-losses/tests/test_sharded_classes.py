"""Sharded class weights: loss, gradients and trained weights should not differ from a single
process.
"""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from losses_support import sharded_world, use_blocks
from torch.nn.functional import softplus

import dml_losses.plugin
from dml_core import ClassShard, DmlError, Plugins, Registry, centers_per_class_of
from dml_core.testing.ranks import run_ranks
from dml_losses import (
    GlobalBatch,
    InstanceCrossEntropy,
    MemVir,
    NormSoftmax,
    ProxyAnchor,
    ShardedClasses,
)
from dml_losses.functional.cosine_softmax import cosine_softmax
from dml_losses.ranks.class_shard import RankClasses

SIZES = (2, 4)
Worlds = dict[int, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Return the results saved by all ranks, by the number of ranks."""
    folder = tmp_path_factory.mktemp("worlds")
    run_ranks(sharded_world.train_on_ranks, max(SIZES), folder, SIZES)
    return {
        size: [torch.load(folder / f"{rank} of {size}") for rank in range(size)] for size in SIZES
    }


@pytest.mark.slow
class TestOnRanks:
    @pytest.mark.parametrize("name", sharded_world.LOSSES)
    @pytest.mark.parametrize("size", SIZES)
    def test_they_train_as_one_process_does(self, worlds: Worlds, size: int, name: str) -> None:
        alone = sharded_world.train(name, rank=0, world_size=1, sharded=False)
        ended = [saved["results"][name] for saved in worlds[size]]
        assert all(result["values"] == ended[0]["values"] for result in ended)
        # Ranks add up float64 numbers in a different order, over eight steps.
        assert ended[0]["values"] == pytest.approx(alone["values"], rel=1e-10, abs=1e-10)
        bounds = [result["rows"]["loss.class_weights"] for result in ended]
        centers = centers_per_class_of(sharded_world.LOSSES[name]())
        assert [first for first, _ in bounds] == [
            rank * 7 // size * centers for rank in range(size)
        ]
        for key, expected in alone["state"].items():
            parts = [result["state"][key] for result in ended]
            for got in [torch.cat(parts)] if key == "class_weights" else parts:
                torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10, msg=key)

    @pytest.mark.parametrize("size", SIZES)
    def test_as_many_classes_as_ranks_are_enough_and_fewer_raise(
        self, worlds: Worlds, size: int
    ) -> None:
        expected = (
            f"ValueError: there are {size - 1} classes for {size} ranks; expected at least one for "
            "each"
        )
        for rank, saved in enumerate(worlds[size]):
            assert saved["smallest"] == (rank, size)
            assert saved["report_write_errors"]["too few classes"] == expected

    @pytest.mark.parametrize("size", SIZES)
    def test_a_loss_made_before_the_process_group_raises(self, worlds: Worlds, size: int) -> None:
        for rank, saved in enumerate(worlds[size]):
            expected = (
                f"RuntimeError: this is rank {rank} of {size}, but was rank 0 of 1 when the class "
                "weights"
            )
            assert saved["report_write_errors"]["made before"].startswith(expected)


@pytest.mark.parametrize("name", sharded_world.LOSSES)
def test_one_rank_has_all_classes_and_trains_as_without_sharding(name: str) -> None:
    alone, sharded = (sharded_world.train(name, 0, 1, sharded=sharded) for sharded in (False, True))
    assert sharded["values"] == pytest.approx(alone["values"], rel=1e-12, abs=1e-12)
    for key, expected in alone["state"].items():
        torch.testing.assert_close(sharded["state"][key], expected, rtol=1e-10, atol=1e-12, msg=key)


@settings(deadline=None, max_examples=40)
@given(
    scale=st.sampled_from([0.1, 1.0, 64.0, 1000.0]),
    classes=st.integers(1, 5),
    kept=st.booleans(),
    size=st.integers(1, 6),
    angular=st.sampled_from([0.0, 0.5]),
    positive=st.booleans(),
    opposite=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_the_gradient_is_that_of_the_definition(
    scale, classes, kept, size, angular, positive, opposite, seed
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    weights = torch.randn(classes, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(classes, (6,), generator=generator)
    if (
        opposite
    ):  # all cosines are close to 1 or -1, so that exponentials of differences would overflow
        x = torch.where(y[:, None] > 0, 1.0, -1.0) * weights[:1] + 1e-3 * x

    def define(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        cosine = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(weights).T
        true = cosine.gather(1, y[:, None]).clamp(-1, 1)
        inside = true > -math.cos(angular)
        turned = torch.where(
            inside, (true.acos() + angular).cos(), true - angular * math.sin(angular)
        )
        logits = scale * cosine.scatter(1, y[:, None], turned if angular else true)
        if positive:
            return torch.nn.functional.cross_entropy(logits, y)
        if classes == 1:
            return 0 * logits.sum()
        others = logits.scatter(1, y[:, None], -torch.inf)
        return (others.logsumexp(1) - logits.gather(1, y[:, None]).squeeze(1)).mean()

    sides = [(x.clone().requires_grad_(), weights.clone().requires_grad_()) for _ in range(2)]
    rank = RankClasses(sides[0][1], 0, classes)
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_blocks(monkeypatch, kept, size)
        value = cosine_softmax(
            sides[0][0], y, rank, scale, angular_margin=angular, positive_in_denominator=positive
        )
        (3 * value).backward()
    expected = define(*sides[1])
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    (3 * expected).backward()
    for got, wanted in zip(*sides, strict=True):
        # acos loses half of the digits if a cosine is 1, and a scale of 1000 multiplies the error.
        torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-4, atol=1e-6 * scale)


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device; other tests use the CPU"
)
def test_on_a_gpu_the_loss_and_its_gradients_are_those_of_the_cpu() -> None:
    for make in sharded_world.LOSSES.values():
        ended = []
        for device in ("cpu", "cuda"):
            torch.manual_seed(0)
            loss = ShardedClasses(make().double()).to(device)
            x, y = (tensor.to(device) for tensor in sharded_world.global_batch(3))
            value = loss(x.requires_grad_(), y)
            value.backward()
            weights = loss.loss.class_weights.grad
            ended.append([tensor.detach().cpu().to_dense() for tensor in (value, x.grad, weights)])
        torch.testing.assert_close(
            *ended, rtol=1e-10, atol=1e-10
        )  # float64, sums in a different order


@pytest.mark.parametrize("centers", [1, 3])
def test_a_rank_without_any_class_of_the_choice_contributes_nothing(centers: int) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    none = torch.empty(0, 4, requires_grad=True)
    rank = RankClasses(none, 5, 7)
    value = cosine_softmax(x, torch.arange(3), rank, 16.0, centers_per_class=centers)
    value.backward()
    assert value == 0
    assert (x.grad == 0).all()
    assert none.grad.shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_embeddings_get_their_gradient_in_their_own_dtype(dtype: torch.dtype) -> None:
    loss = ShardedClasses(NormSoftmax(6, 4))
    x = torch.randn(5, 4).to(dtype).requires_grad_()
    value = loss(x, torch.arange(5))
    value.backward()
    assert value.dtype == torch.float32
    assert x.grad.dtype == dtype
    assert torch.isfinite(x.grad).all()


def test_a_loss_gets_its_embeddings_in_float32_at_least() -> None:
    class Recording(NormSoftmax):
        def sharded_forward(
            self, embeddings: torch.Tensor, labels: torch.Tensor, shard: ClassShard
        ) -> torch.Tensor:
            seen.append(embeddings.dtype)
            return super().sharded_forward(embeddings, labels, shard)

    seen: list[torch.dtype] = []
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        ShardedClasses(Recording(3, 4))(torch.randn(2, 4).to(dtype), torch.arange(2))
    assert seen == [torch.float32] * 3 + [torch.float64]


@pytest.mark.parametrize("name", sharded_world.LOSSES)
def test_a_rank_draws_its_own_rows_with_the_bits_of_all(monkeypatch, name) -> None:
    torch.manual_seed(3)
    whole, after = sharded_world.LOSSES[name](), torch.randn(20)
    for rank in range(3):
        for module in ("dml_losses.class_weights", "dml_losses.ranks.sharded_classes"):
            monkeypatch.setattr(f"{module}.rank_and_world_size", lambda rank=rank: (rank, 3))
        # Given a function, a rank draws only the local rows; given a loss, it keeps the local rows
        # of all drawn rows.
        for wrap in (lambda make: make, lambda make: make()):
            torch.manual_seed(3)
            loss = ShardedClasses(wrap(sharded_world.LOSSES[name]))
            own, rows = loss.loss.class_weights, loss.sharded_parameters()["loss.class_weights"]
            assert rows.total == len(whole.class_weights)
            assert torch.equal(own, whole.class_weights[rows.first : rows.first + len(own)])
            assert torch.equal(torch.randn(20), after)
        assert len(own) < len(whole.class_weights)


MEASURE = """
import resource, torch
import dml_losses.class_weights, dml_losses.ranks.sharded_classes
from dml_losses import ArcFace, ShardedClasses

for module in (dml_losses.class_weights, dml_losses.ranks.sharded_classes):
    module.rank_and_world_size = lambda: (5, 32)
ShardedClasses(lambda: ArcFace(32, 128))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
loss = ShardedClasses(lambda: ArcFace(200_000, 128))
print(len(loss.loss.class_weights), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_a_rank_never_has_the_memory_of_all_class_weights() -> None:
    result = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True
    )
    count, growth = map(int, result.stdout.split())
    assert count == 6250
    assert (
        growth < 30_000
    )  # KiB; this rank's rows need 3 MiB and a block 4, but all rows need 98 MiB


def test_every_registered_loss_that_can_be_sharded_is_tested_here() -> None:
    tested = {type(make()) for make in sharded_world.LOSSES.values()}
    for component in dml_losses.plugin.dml_losses():
        if hasattr(component.factory, "sharded_forward"):
            assert component.factory in tested, component.name


class Doubled(NormSoftmax):
    def forward(self, *arguments: torch.Tensor | None) -> torch.Tensor:
        return 2 * super().forward(*arguments)


def with_a_scale() -> torch.nn.Module:
    loss = sharded_world.PluginLoss(3, 4)
    loss.scale = torch.nn.Parameter(torch.ones(()))
    return loss


OUTSIDE = torch.randn(2, 4), torch.tensor([0, 3])


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: ShardedClasses(ProxyAnchor(3, 4)), TypeError,
         r"loss is ProxyAnchor, .* it has no method sharded_forward\(embeddings, "),
        (lambda: ShardedClasses(InstanceCrossEntropy()), TypeError,
         "loss is InstanceCrossEntropy, which has no class_weights; expected a"),
        (lambda: ShardedClasses(with_a_scale()), TypeError,
         "PluginLoss, whose parameters are class_weights, scale; expected only cl"),
        (lambda: ShardedClasses(Doubled(3, 4)), TypeError,
         "whose forward is defined by Doubled, but whose sharded_forward is inherited from "
         "NormSoft"),
        (lambda: MemVir(ShardedClasses(NormSoftmax(3, 4)), 1, 0), TypeError,
         "loss is ShardedClasses, which has no class_weights"),
        (lambda: ShardedClasses(MemVir(NormSoftmax(3, 4), 1, 0)), TypeError,
         "loss is MemVir, whose class weights can't be sharded: it has no method"),
        (lambda: GlobalBatch(ShardedClasses(NormSoftmax(3, 4)))(*OUTSIDE), ValueError,
         r"labels contains 3; expected class indices in \[0, 3\)"),
    ],
)  # fmt: skip
def test_what_can_not_be_sharded_raises(act, error, message) -> None:
    with pytest.raises(error, match=message):
        act()


def test_a_recipe_with_a_loss_that_can_not_be_sharded_is_a_user_error() -> None:
    plugins = Plugins()
    plugins.register(dml_losses.plugin, distribution="dml-losses", version="0.1.0")
    table = {"name": "sharded-classes", "loss": {"name": "soft-triple"}}
    context = {"num_classes": 3, "embedding_dim": 4, "steps_per_epoch": 5, "seed": 0}
    with pytest.raises(
        DmlError, match=r"'sharded-classes' .*loss is SoftTriple, .* no method sharded_forward"
    ):
        Registry(plugins).build("losses", table, context)


def test_a_subclass_that_adds_sharded_forward_is_accepted() -> None:
    class Anchored(ProxyAnchor):
        def sharded_forward(
            self, embeddings: torch.Tensor, labels: torch.Tensor, shard: ClassShard
        ) -> torch.Tensor:
            return embeddings.sum() * len(shard.class_weights)

    assert ShardedClasses(Anchored(3, 4))(torch.ones(2, 4), torch.tensor([0, 2])) == 24


@settings(deadline=None, max_examples=60)
@given(
    classes=st.integers(1, 5),
    cuts=st.lists(st.integers(0, 5), max_size=3),
    size=st.sampled_from([1.0, 100.0, 1e5]),
    seed=st.integers(0, 2**16),
)
def test_a_shards_logits_are_those_of_all_classes(classes, cuts, size, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    z = size * torch.randn(6, classes, generator=generator, dtype=torch.float64)
    y = torch.randint(classes, (6,), generator=generator)
    whole = RankClasses(torch.empty(classes, 1), 0, classes)
    sides = [z.clone().requires_grad_() for _ in range(2)]
    true, others = whole.true_logits(sides[0], y), whole.other_logits(sides[0], y)
    expected_true = sides[1].gather(1, y[:, None]).squeeze(1)
    masked = sides[1].scatter(1, y[:, None], -torch.inf)
    assert torch.equal(true, expected_true)
    if classes == 1:
        assert (others == -torch.inf).all()
        softplus(others - true).sum().backward()
        assert (sides[0].grad == 0).all()
        return
    # The sides add up in a different order.
    torch.testing.assert_close(others, masked.logsumexp(1), rtol=1e-12, atol=1e-12)
    (true + 3 * others).sum().backward()
    (expected_true + 3 * masked.logsumexp(1)).sum().backward()
    torch.testing.assert_close(sides[0].grad, sides[1].grad, rtol=1e-10, atol=1e-12)
    # In a single process, a part only sees the logits of its classes; the results of all parts must
    # add up.
    bounds = sorted({0, classes, *(min(cut, classes) for cut in cuts)})
    parts = [RankClasses(torch.empty(b - a, 1), a, classes) for a, b in itertools.pairwise(bounds)]
    slices = [z[:, a:b] for a, b in itertools.pairwise(bounds)]
    values = [part.true_logits(some, y) for part, some in zip(parts, slices, strict=True)]
    assert torch.equal(torch.stack(values).sum(0), true)
    values = [part.other_logits(some, y) for part, some in zip(parts, slices, strict=True)]
    torch.testing.assert_close(
        torch.stack(values).logsumexp(0), others.detach(), rtol=1e-12, atol=1e-12
    )


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_without_another_class_no_gradient_is_nan() -> None:
    only, logits = RankClasses(torch.empty(1, 4), 0, 1), torch.randn(3, 1, requires_grad=True)
    with torch.autograd.detect_anomaly():
        softplus(only.other_logits(logits, torch.zeros(3)) - 1).sum().backward()
    assert (logits.grad == 0).all()


def test_a_shard_without_classes_has_no_logits() -> None:
    none, empty = RankClasses(torch.empty(0, 4), 5, 9), torch.empty(3, 0, requires_grad=True)
    true, others = (
        none.true_logits(empty, torch.arange(3)),
        none.other_logits(empty, torch.arange(3)),
    )
    assert true.tolist() == [0, 0, 0]
    assert (others == -torch.inf).all()
    softplus(others - true).sum().backward()
    assert empty.grad.shape == (3, 0)

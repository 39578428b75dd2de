"""Compare all pair losses with the equations, written as loops; test additional features of
losses.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from losses_support import references as reference
from losses_support import rows
from torch.autograd import grad
from torch.utils._python_dispatch import TorchDispatchMode

from dml_losses import InfoNCE, MultiSimilarity, SigLIP, exchange
from dml_losses import functional as F
from dml_losses.functional import pairs

Loss = Callable[..., torch.Tensor]
PAPER = {
    "margin": 0.4,
    "alpha": 1.2,
    "negative_temperature": 10.0,
    "positive_temperature": 0.0,
    "balance": 0.5,
}
SUP_AP = {"temperature": 0.1, "slope": 3.0, "saturation": 0.3}
LEARNED = {
    "log_scale": torch.tensor(1.3, dtype=torch.float64, requires_grad=True),
    "bias": torch.tensor(-0.7, dtype=torch.float64, requires_grad=True),
}
TEMPERATURE = {"log_scale": LEARNED["log_scale"]}
CASES: dict[str, tuple[Loss, Loss, dict[str, Any]]] = {
    **{
        f"instance-cross-entropy, scale {scale:g}": (
            lambda *given, scale: F.instance_cross_entropy(*given, scale=scale, reweight=False),
            lambda x, y, *gallery,
            scale: reference.instance_cross_entropy_value(x, y, scale, *gallery),
            {"scale": scale},
        )
        for scale in (1.0, 8.0, 64.0)
    },
    "ranked-list": (F.ranked_list, reference.ranked_list_value, PAPER),
    "ranked-list, no weights": (
        F.ranked_list, reference.ranked_list_value,
        PAPER | {"margin": 0.2, "alpha": 1.1, "negative_temperature": 0.0},
    ),
    "ranked-list, weights of positives": (
        F.ranked_list, reference.ranked_list_value,
        PAPER | {"positive_temperature": 5.0, "balance": 0.3},
    ),
    "ranked-list, wide": (
        F.ranked_list, reference.ranked_list_value,
        PAPER | {"positive_temperature": -5.0, "alpha": 1.9, "margin": 1.9},
    ),
    "ranked-list, total": (F.ranked_list, reference.ranked_list_value,
        PAPER | {"query_weights": "total"}),
    "smooth-ap": (F.smooth_ap, reference.smooth_ap_value, {"temperature": 0.2}),
    "smooth-ap, sharp": (F.smooth_ap, reference.smooth_ap_value, {"temperature": 0.01}),
    "sup-ap": (F.sup_ap, reference.sup_ap_value, SUP_AP),
    "sup-ap, saturated at 0": (F.sup_ap, reference.sup_ap_value, SUP_AP | {"saturation": 0.0}),
    "recall": (
        F.recall_at_k_surrogate, reference.recall_at_k_value,
        {"ks": [1, 2, 4], "k_temperatures": [1.0, 0.5, 4.0], "rank_temperature": 0.2},
    ),
    # Temperature 0.01 counts all seven positives as ranked within 4; the count is limited to 4,
    # without a gradient.
    "recall, limited": (
        F.recall_at_k_surrogate, reference.recall_at_k_value,
        {"ks": [4, 6], "k_temperatures": [0.01, 0.2], "rank_temperature": 5.0},
    ),
    "triplet, hard": (F.triplet, reference.triplet_value,
        {"triplets": "batch-hard", "margin": 0.3}),
    "triplet, hard, soft": (F.triplet, reference.triplet_value,
        {"triplets": "batch-hard", "margin": "soft"}),
    "triplet, all": (F.triplet, reference.triplet_value, {"triplets": "batch-all", "margin": 0.3}),
    "triplet, all, soft": (F.triplet, reference.triplet_value,
        {"triplets": "batch-all", "margin": "soft"}),
    "triplet, semi-hard": (F.triplet, reference.triplet_value,
        {"triplets": "semi-hard", "margin": 0.3}),
    "triplet, semi-hard, soft": (F.triplet, reference.triplet_value,
        {"triplets": "semi-hard", "margin": "soft"}),
    "contrastive": (F.contrastive, reference.contrastive_value, {"margin": 1.3}),
    "multi-similarity": (
        F.multi_similarity, reference.multi_similarity_value,
        {"alpha": 2.0, "beta": 50.0, "threshold": 0.5, "epsilon": 0.1},
    ),
    "multi-similarity, all pairs": (
        F.multi_similarity, reference.multi_similarity_value,
        {"alpha": 3.0, "beta": 20.0, "threshold": 0.2, "epsilon": 3.0},
    ),
    "info-nce": (F.info_nce, reference.info_nce_value, TEMPERATURE | {"symmetric": True}),
    "info-nce, one side": (F.info_nce, reference.info_nce_value,
        TEMPERATURE | {"symmetric": False}),
    "sup-con": (F.sup_con, reference.sup_con_value, {"temperature": 0.1}),
    "koleo": (F.koleo, reference.koleo_value, {}),
    "siglip": (F.siglip, reference.siglip_value, LEARNED),
}  # fmt: skip
all_cases = pytest.mark.parametrize("name", CASES)


def assert_same(value: torch.Tensor, expected: torch.Tensor, *moved: torch.Tensor) -> None:
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)
    found, wanted = (
        grad(loss, moved, materialize_grads=True, allow_unused=True) for loss in (value, expected)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@all_cases
@pytest.mark.parametrize(
    "labels",
    [
        [0, 0, 1, 1, 2, 2],
        [3, 0, 3, 3, 7, 0, 3, 5],
        [0, 0, 0],
        [0, 1, 2],
        [4],
        [1, 1, 1, 1, 1, 1, 1, 0],
    ],
)
def test_value_and_gradient_are_those_of_the_equations(name: str, labels: list[int]) -> None:
    fast, slow, parameters = CASES[name]
    x, y = rows(len(labels), 0, 3).requires_grad_(), torch.tensor(labels)
    assert_same(fast(x, y, **parameters), slow(x, y, **parameters), x, *LEARNED.values())


@all_cases
@pytest.mark.parametrize(
    "gallery_labels",
    [[0, 1, 1, 3, 0, 1, 4, 0, 0], [5, 7, 5, 6], [1, 1, 1, 1], [9, 1, 2, 9]],
    ids=["matches", "none match", "none match one class", "some match"],
)
def test_a_gallery_is_compared_as_the_equations_say(name: str, gallery_labels: list[int]) -> None:
    """No row is omitted. The gallery gets a gradient, but is constant in Ranked List Loss."""
    fast, slow, parameters = CASES[name]
    x, y = rows(5, 1, 3).requires_grad_(), torch.tensor([2, 0, 3, 0, 9])
    g, z = rows(len(gallery_labels), 2, 3).requires_grad_(), torch.tensor(gallery_labels)
    assert_same(
        fast(x, y, g, z, **parameters), slow(x, y, g, z, **parameters), x, g, *LEARNED.values()
    )


@all_cases
def test_a_gallery_may_have_another_dtype_of_rows_and_labels(name: str) -> None:
    fast, _, parameters = CASES[name]
    x, y, g, z = rows(5, 2), torch.arange(5) % 2, rows(6, 3).float(), torch.arange(6) % 3
    expected = fast(x, y, g.double(), z, **parameters)
    assert torch.equal(fast(x, y.int(), g, z.to(torch.uint8), **parameters), expected)
    assert fast(g, z, x, y, **parameters).dtype == torch.float64


@all_cases
def test_the_gradient_scales_with_the_upstream_gradient(name: str) -> None:
    fast, _, parameters = CASES[name]
    x, y = rows(6, 4).requires_grad_(), torch.arange(6) // 2
    once, tripled = grad(fast(x, y, **parameters), x)[0], grad(3 * fast(x, y, **parameters), x)[0]
    torch.testing.assert_close(tripled, 3 * once, rtol=1e-14, atol=0)


@all_cases
def test_blocks_change_nothing_but_rounding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, _, parameters = CASES[name]
    x = rows(150, 4, dim=6).requires_grad_()
    y = torch.randint(0, 40, (150,), generator=torch.Generator().manual_seed(0))
    whole = fast(x, y, **parameters)
    gradient = grad(whole, x)[0]
    monkeypatch.setattr(pairs, "_CPU_BLOCK_ELEMENTS", 16 * 150)
    monkeypatch.setattr(sys.modules["dml_losses.functional.koleo"], "_BLOCK_ELEMENTS", 16 * 150)
    blocks = fast(x, y, **parameters)
    torch.testing.assert_close(blocks, whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(grad(blocks, x)[0], gradient, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("flags",
    [(True, True, True), (True, False, False), (True, False, True), (True, True, False),
                                   (False, True, True), (False, True, False),
                                   (False, False, True)])  # fmt: skip
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("instance_cross_entropy", (8.0, True)),
        ("ranked_list", (0.8, 1.2, 0.0, 10.0, 0.5, False)),
        ("recall_at_k_surrogate", ([1.0, 2.0], [1.0, 1.0], 0.1)),
        ("sup_con", (0.1,)),
        ("siglip", (torch.tensor([1.3, -0.7]), False)),
        ("info_nce", (torch.tensor([1.3]), False)),
        ("triplet", ("semi-hard", 0.2, False)),
        ("contrastive", (1.3,)),
        ("multi_similarity", (2.0, 50.0, 0.5, 0.1)),
    ],
)
def test_the_fake_of_an_operator_has_the_shapes_of_its_results(name, parameters, flags) -> None:
    x, y, g, z = rows(4, 5), torch.arange(4) % 2, rows(6, 6), torch.arange(6) % 3
    given = (x, y, *((x, y) if flags[0] else (g, z)), *flags, *parameters)
    operator = getattr(torch.ops.dml_losses, name).default
    torch.library.opcheck(operator, given, test_utils=("test_schema", "test_faketensor"))


def test_one_positive_behind_one_of_two_negatives_by_hand() -> None:
    """Cosines are 1/2 for the positive, 1 and 0 for negatives; with τ = 1/(2·log 3), the sigmoids
    are 3/4 and 1/4.
    """
    q, y = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([0])
    g = torch.tensor([[0.5, 0.75**0.5], [2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    given, z = (q, y, g), torch.tensor([0, 1, 2])
    tau = 1 / (2 * math.log(3))
    smooth = F.smooth_ap(*given, z, temperature=tau)
    assert smooth.item() == pytest.approx(1 - 1 / 2)  # 1/(1 + 3/4 + 1/4)
    sup = F.sup_ap(*given, z, temperature=tau, slope=2.0, saturation=0.25)
    above = 2.0 * 0.25 + 1 / (1 + 3**-0.5) + 0.5
    assert sup.item() == pytest.approx(1 - 1 / (1 + above + 1 / 4))
    recall = F.recall_at_k_surrogate(
        *given, z, ks=[1, 2], k_temperatures=[1, 1], rank_temperature=tau
    )
    assert recall.item() == pytest.approx(1 - (1 / (1 + math.e) + 1 / 2) / 2)  # rank 2


def test_sup_ap_bounds_average_precision_and_counts_ranks_without_smoothing() -> None:
    x, y = rows(40, 7, dim=5), torch.arange(40) // 4
    exact = F.smooth_ap(x, y, temperature=1e-9)  # exact steps, since no similarities are this close
    for temperature in (0.5, 0.01, 1e-9):
        assert F.sup_ap(x, y, temperature=temperature) >= exact - 1e-12


def test_wrongly_ranked_pairs_keep_their_gradient_in_sup_ap_alone() -> None:
    """Given cosines −1/2 of a positive and 1/2 of a negative, the sigmoid's slope is 0, but ρ is
    not.
    """
    q = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    g = torch.tensor([[-0.5, 0.75**0.5], [0.5, 0.5]], dtype=torch.float64)
    sizes = []
    for loss in (F.smooth_ap, F.sup_ap):
        leaf = q.clone().requires_grad_()
        sizes.append(
            float(grad(loss(leaf, torch.tensor([0]), g, torch.arange(2)), leaf)[0].abs().max())
        )
    assert sizes[0] < 1e-12 < 1e-4 < sizes[1]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in CASES
        if name.startswith(("smooth-ap", "sup-ap", "recall", "triplet", "info-nce"))
    ],
)
def test_no_tensor_is_larger_than_a_block(name: str) -> None:
    """With 1,024 queries in 32 classes, queries × positives × gallery would have 32 million
    elements.
    """

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
            result = function(*arguments, **(options or {}))
            for tensor in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(tensor, torch.Tensor):
                    self.size = max(self.size, tensor.numel())
            return result

    fast, _, parameters = CASES[name]
    x = rows(1024, 3, dim=4).float().requires_grad_()
    with Largest() as largest:
        fast(x, torch.arange(1024) % 32, **parameters).backward()
    assert largest.size <= 128 * 1024  # a block's rows × the gallery


def test_losses_of_distances_and_pairs_by_hand() -> None:
    """The positives are at distances 1 and √2 (60° and 90°), the negatives at √2 and √3 (90° and
    120°).
    """
    x, y = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([0])
    g = torch.tensor(
        [[0.5, 0.75**0.5], [0.0, 1.0], [0.0, -1.0], [-0.5, 0.75**0.5]], dtype=torch.float64
    )
    z = torch.tensor([0, 0, 1, 1])
    two, three = 2**0.5, 3**0.5
    for triplets, margin, expected in [
        ("batch-hard", 0.2, 0.2),
        ("batch-hard", "soft", math.log(2)),
        ("batch-all", 0.5, (1.5 - two + 0.5 + two + 0.5 - three) / 3),  # 1 + ½ < √3
        ("semi-hard", 0.5, (1.5 - two + two + 0.5 - three) / 2),
    ]:
        value = F.triplet(x, y, g, z, triplets=triplets, margin=margin)
        assert value.item() == pytest.approx(expected), (triplets, margin)
    # Half of the squares 1, 2 and (1.5 − √2)²; √3 is beyond the margin.
    assert F.contrastive(x, y, g, z, margin=1.5).item() == pytest.approx(
        0.75 + (1.5 - two) ** 2 / 2
    )
    # The highest negative has cosine 0, so the positive at 1/2 isn't selected if ε < 1/2, nor the
    # negative at −1/2.
    values = [MultiSimilarity(2.0, 4.0, 0.25, epsilon)(x, y, g, z).item() for epsilon in (0.4, 0.6)]
    positives, negatives = (math.exp(0.5), math.exp(-0.5)), (math.exp(-1), math.exp(-3))
    assert values[0] == pytest.approx(
        math.log(1 + positives[0]) / 2 + math.log(1 + negatives[0]) / 4
    )
    assert values[1] == pytest.approx(
        math.log(1 + sum(positives)) / 2 + math.log(1 + sum(negatives)) / 4
    )


def test_a_triplets_tie_is_not_semi_hard() -> None:
    """FaceNet's negative must be farther than the positive; here both are the same row."""
    x, y = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([0])
    g, z = torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64), torch.tensor([0, 1])
    assert F.triplet(x, y, g, z, triplets="semi-hard").item() == 0
    assert F.triplet(x, y, g, z, triplets="batch-all").item() == pytest.approx(0.2)


def test_info_nce_is_clips_loss_for_two_towers() -> None:
    x, g = rows(7, 0).requires_grad_(), rows(7, 1).requires_grad_()
    y = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    for symmetric in (False, True):
        unit = [torch.nn.functional.normalize(side) for side in (x, g)]
        logits = LEARNED["log_scale"].exp() * unit[0] @ unit[1].T
        expected = torch.nn.functional.cross_entropy(logits, torch.arange(7))
        if symmetric:
            expected = (expected + torch.nn.functional.cross_entropy(logits.T, torch.arange(7))) / 2
        value = F.info_nce(x, y, g, y, **TEMPERATURE, symmetric=symmetric)
        assert_same(value, expected, x, g, LEARNED["log_scale"])


def test_the_temperature_of_info_nce_is_learned_up_to_its_limit() -> None:
    loss = InfoNCE(max_scale=20.0)
    assert loss.log_scale.item() == pytest.approx(math.log(1 / 0.07))
    loss(rows(6, 9), torch.arange(6) // 2).backward()
    assert loss.log_scale.grad.abs() > 0
    loss.log_scale.data.fill_(5.0)
    loss.log_scale.grad = None
    value = loss(rows(6, 9), torch.arange(6) // 2)
    value.backward()
    assert value.item() == pytest.approx(
        InfoNCE(1 / 20)(rows(6, 9), torch.arange(6) // 2).item(), rel=1e-6
    )
    assert loss.log_scale.grad == 0
    fixed = InfoNCE(0.2, learned=False)
    x, y = rows(6, 9), torch.arange(6) // 2
    torch.testing.assert_close(
        fixed(x, y), F.sup_con(x, y, temperature=0.2), rtol=1e-6, atol=0
    )  # log 5 in float32
    assert not fixed.log_scale.requires_grad


def test_sup_con_and_siglip_by_hand() -> None:
    """The positive is at 60° and the negative at 90°: exponentials are 3 and 1, logits 0 and −log
    3.
    """
    x, y = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([0])
    g, z = torch.tensor([[0.5, 0.75**0.5], [0.0, 1.0]], dtype=torch.float64), torch.tensor([0, 1])
    tau = 1 / (2 * math.log(3))
    assert F.sup_con(x, y, g, z, temperature=tau).item() == pytest.approx(math.log(4 / 3))
    learned = {"log_scale": torch.tensor(-math.log(tau)), "bias": torch.tensor(-math.log(3))}
    assert F.siglip(x, y, g, z, **learned).item() == pytest.approx(math.log(2) + math.log(4 / 3))


def play_ranks(
    compute: Callable[[], list[torch.Tensor]], world_size: int, patch: pytest.MonkeyPatch
) -> list[torch.Tensor]:
    """Compute as each rank in turn, recording sent tensors; then as the last rank, given the sums
    over all ranks.
    """
    received: list[torch.Tensor] = []
    sums: list[list[torch.Tensor]] = []
    for rank in range(world_size):
        patch.setattr(exchange, "rank_and_world_size", lambda rank=rank: (rank, world_size))
        sent: list[torch.Tensor] = []

        def gather(
            own: torch.Tensor, counts: list[int], rank: int = rank, sent: Any = sent
        ) -> torch.Tensor:
            assert counts[rank] == len(own)
            rows = own.new_zeros(sum(counts), *own.shape[1:])
            rows[sum(counts[:rank]) :][: len(own)] = own
            return reduce(rows, sent)

        def reduce(numbers: torch.Tensor, sent: Any = sent) -> torch.Tensor:
            sent.append(numbers.clone())
            return numbers.copy_(received[len(sent) - 1]) if received else numbers

        patch.setattr(exchange, "all_gather_rows", gather)
        patch.setattr(pairs, "all_reduce_", reduce)
        compute()
        sums.append(sent.copy())
    received += [torch.stack(parts).sum(dim=0) for parts in zip(*sums, strict=True)]
    sent.clear()
    return compute()


SHARED = {
    "siglip": SigLIP,
    "info-nce": InfoNCE,
    "info-nce, one direction": lambda over_ranks: InfoNCE(symmetric=False, over_ranks=over_ranks),
}


@pytest.mark.parametrize("name", SHARED)
@settings(deadline=None, max_examples=settings.default.max_examples // 2)
@example(size=300, world_size=7, others=None)
@example(size=1, world_size=2, others=None)
@example(size=300, world_size=4, others=70)
@example(size=20, world_size=2, others=0)
@given(size=st.integers(1, 80), world_size=st.integers(2, 7), others=st.none() | st.integers(0, 80))
def test_shares_of_any_number_of_ranks_make_the_loss_of_one(
    name: str, size: int, world_size: int, others: int | None
) -> None:
    """Test a batch, or a batch with a gallery of other rows; `test_global_batch` runs real
    ranks.
    """
    x, y = rows(size, 8, dim=16).float().requires_grad_(), torch.arange(size) % 31
    gallery = (
        []
        if others is None
        else [rows(others, 9, dim=16).float().requires_grad_(), torch.arange(others) % 29]
    )
    shared = SHARED[name](over_ranks=True)

    def compute(loss: torch.nn.Module = shared) -> list[torch.Tensor]:
        value = loss(x, y, *gallery)
        leaves = x, *loss.parameters(), *gallery[:1]  # an empty gallery is not used
        return [value.detach(), *grad(value, leaves, materialize_grads=True)]

    with pytest.MonkeyPatch.context() as patch:
        together = play_ranks(compute, world_size, patch)
    alone, plain = compute(), compute(SHARED[name](over_ranks=False))
    # Sums over ranks are rounded differently. Only the value and, for siglip, gradients of x and
    # parameters are exact.
    exact = 4 if name == "siglip" else 1
    assert all(map(torch.equal, together[:exact], alone[:exact]))
    for got, same, expected in zip(together, alone, plain, strict=True):
        torch.testing.assert_close(got, same, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_the_scale_and_the_bias_are_learned() -> None:
    loss = SigLIP()
    assert loss.log_scale.item() == pytest.approx(math.log(10))
    assert loss.bias.item() == -10
    loss(rows(6, 9), torch.arange(6) // 2).backward()
    assert loss.log_scale.grad is not None
    assert loss.bias.grad.abs() > 0

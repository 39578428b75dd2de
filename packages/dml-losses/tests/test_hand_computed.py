"""Compare losses with the papers' equations, computed by hand; other tests compare them with slow
references.

Most inputs are unit vectors at 60° (cosine 1/2) and 90° (cosine 0), and the scale is 2·log 3, so
that exponentials are 3 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.autograd import grad

import dml_losses as dml
from dml_losses import functional as F

S = 2 * math.log(3)  # e^{S/2} = 3
X, Y = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([0])
AT_60, AT_90 = [0.5, 0.75**0.5], [0.0, 1.0]
W = torch.tensor([AT_60, AT_90], dtype=torch.float64)
BOTH_AT_60 = torch.tensor([AT_60, AT_60], dtype=torch.float64)
AT_170_AND_178 = torch.tensor(
    [[math.cos(angle), math.sin(angle)] for angle in (math.radians(170), math.radians(178))],
    dtype=torch.float64,
)
AT_150 = torch.tensor([[-(0.75**0.5), 0.5], AT_90], dtype=torch.float64)
CENTERS = torch.tensor([[1.0, 0.0], AT_90, AT_90, [0.0, -1.0]], dtype=torch.float64)
COLUMN = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
SIGNS = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)

Loss = Callable[[], torch.Tensor]
CASES: dict[str, tuple[Loss, float]] = {
    "norm-softmax": (  # 3/(3 + 1)
        lambda: F.norm_softmax(3 * X, Y, 5 * W, temperature=1 / S),
        math.log(4 / 3),
    ),
    "heated-up-batch": (  # batch norm makes −1 and 1, divided by √D = 1; e^{α − (−α)} = 3
        lambda: F.heated_up_softmax(COLUMN, torch.tensor([0, 1]), SIGNS, alpha=S / 4,
            feature_norm="batch"),
        math.log(4 / 3),
    ),
    "cos-face": (  # 1/2 − 1/2 = 0
        lambda: F.cos_face(X, Y, W, scale=S, margin=0.5),
        math.log(2),
    ),
    "arc-face": (  # 60° + 30° = 90°
        lambda: F.arc_face(X, Y, W, scale=S, margin=math.pi / 6),
        math.log(2),
    ),
    "arc-face beyond π": (  # 150° + 60°: cos 150° − π/3·sin 60° = −1.772925
        lambda: F.arc_face(X, Y, AT_150, scale=1.0, margin=math.pi / 3),
        math.log(1 + math.exp(1.772925)),
    ),
    "curricular-face": (  # T = 0 and a harder negative: 1/2·(1/2 + 1/2), which makes 1/(1 + 3)
        lambda: F.curricular_face(
            X, Y, BOTH_AT_60, torch.tensor(0.5).double(), scale=S, margin=math.pi / 6
        ),
        math.log(4),
    ),
    # cos(170° + 28.65°) = −0.947 > cos 178°: not hard; the target is cos 170° − 0.5·sin 28.65°
    "curricular-face beyond π": (
        lambda: F.curricular_face(X, Y, AT_170_AND_178, torch.tensor(0.0), scale=64.0, margin=0.5),
        64 * (math.cos(math.radians(178)) - math.cos(math.radians(170)) + 0.5 * math.sin(0.5)),
    ),
    "proxy-nca": (  # squared distances 1 and 2; the sum only has the other class
        lambda: F.proxy_nca(X, Y, W, scale=1.0),
        -1.0,
    ),
    "proxy-nca with the positive": (
        lambda: F.proxy_nca(X, Y, W, scale=1.0, positive_in_denominator=True),
        math.log(1 + math.exp(-1)),
    ),
    "proxy-anchor": (  # log(1 + e^0) over the proxy with a positive, log(1 + 3) over both proxies
        lambda: F.proxy_anchor(X, Y, W, scale=S, margin=0.5),
        2 * math.log(2),
    ),
    "softmax": (
        lambda: F.softmax(S * X, Y, W),
        math.log(4 / 3),
    ),
    "virtual-softmax": (  # ‖w_y‖‖x‖ = S: 3/(3 + 1 + 9)
        lambda: F.virtual_softmax(S * X, Y, W),
        math.log(13 / 3),
    ),
    # shares 3/4 and 1/4 make S_y = 3/4, δ leaves 1/2; centres √2 and 2 apart, τ/(C·K(K − 1)) = 0.1
    "soft-triple": (
        lambda: F.soft_triple(
            X, Y, CENTERS, centers_per_class=2, scale=S, center_temperature=2 / S, margin=0.25,
            merge_weight=0.4
        ),
        math.log(4 / 3) + 0.1 * (2**0.5 + 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_loss_is_the_number_by_hand(name: str) -> None:
    loss, expected = CASES[name]
    # SoftTriple adds 1e-5 under the root, and batch norm adds 1e-5 to the variance.
    assert loss().item() == pytest.approx(expected, abs=3e-6)


def test_instance_cross_entropys_value_and_equation_13_to_15() -> None:
    """There is a single anchor, with positives at 60° and 90° and a negative at 90°, so p̂ is 3/4
    and 1/2.
    """
    a = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    g = torch.tensor(
        [[*AT_60, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64
    ).requires_grad_()
    y, z = torch.tensor([7]), torch.tensor([7, 7, 3])
    value = F.instance_cross_entropy(a, y, g, z, scale=S)
    expected = (math.log(4 / 3) + math.log(2)) / 2
    assert value.item() == pytest.approx(expected, rel=1e-12)
    # The weights are 1/(2N)·(1/4)/(3/4) = 1/6, 1/3 and 1/2; the component along the row itself is
    # subtracted.
    wanted = torch.tensor(
        [[-0.75 / 6, 0.5 * 0.75**0.5 / 6, 0], [-1 / 3, 0, 0], [1 / 2, 0, 0]]
    ).double()
    torch.testing.assert_close(
        grad(value, g)[0], wanted, rtol=1e-7, atol=1e-8
    )  # `wanted` began in float32


def test_ranked_list_losss_equations_8_to_14() -> None:
    """Positives are at distances √2 and 2, above 0.8; negatives are at 1 and 0.4, below 1.2 by 0.2
    and 0.8.
    """
    q = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    g = [[0, 1, 0], [-1, 0, 0], [*AT_60, 0], [0.92, (1 - 0.92**2) ** 0.5, 0]]
    gallery, y, z = (
        torch.tensor(g, dtype=torch.float64),
        torch.tensor([7]),
        torch.tensor([7, 7, 3, 4]),
    )
    share = 1 / (1 + math.exp(6))  # e^{10·0.2} / (e^{10·0.2} + e^{10·0.8})
    expected = 0.5 * (2**0.5 + 2 - 1.6) / 2 + 0.5 * (0.2 * share + 0.8 * (1 - share))
    assert F.ranked_list(q, y, gallery, z).item() == pytest.approx(expected, rel=1e-12)


def test_the_mean_over_queries_counts_those_that_violate_nothing() -> None:
    """Eq. 14 divides by the batch size: a pair of queries is 0.1 too close, and the third is far
    from both.
    """
    x = torch.tensor(
        [[1, 0], [1 - 1.1**2 / 2, (1 - (1 - 1.1**2 / 2) ** 2) ** 0.5], [-1, 0]]
    ).double()
    assert F.ranked_list(x, torch.arange(3)).item() == pytest.approx(
        0.5 * (0.1 + 0.1 + 0) / 3, rel=1e-6
    )


def test_a_part_of_the_classes_is_a_softmax_over_so_many() -> None:
    """Ten classes are mutually at 90°, so any choice of four gives 9/(9 + 3)."""
    loss = dml.SampledClasses(dml.NormSoftmax(10, 10, temperature=1 / S), 0.4).double()
    loss.class_weights.data = torch.eye(10, dtype=torch.float64)
    assert loss(torch.eye(10).double()[6:7], torch.tensor([6])).item() == pytest.approx(
        math.log(12 / 9)
    )


def test_memvirs_equation_5_after_one_step() -> None:
    """Class and embedding were at 0°; now the class is at 90° and the batch is at 60°, 30° from the
    class.
    """
    loss = dml.MemVir(dml.NormSoftmax(1, 2, temperature=1 / S).double(), num_steps=1, margin=0)
    loss.class_weights.data = X.clone()
    assert loss(X, Y) == 0  # a single class
    loss.class_weights.data = torch.tensor([AT_90], dtype=torch.float64)
    value = loss(torch.tensor([AT_60], dtype=torch.float64), Y)
    real = math.log(
        1 + 3 / math.exp(S * 0.75**0.5)
    )  # cosine √3/2 with the class, 1/2 with the past
    virtual = math.log(
        1 + 1 / 9
    )  # the past embedding: cosine 1 with the past class, 0 with the current class
    assert value.item() == pytest.approx((real + virtual) / 2, rel=1e-6)

"""Compare all class losses with the equations, written as loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from losses_support import BLOCKS, assert_same_gradients, rows, use_blocks
from losses_support import references as reference
from torch.autograd import grad

from dml_losses import CurricularFace, HeatedUpSoftmax, SoftTriple
from dml_losses import functional as F
from dml_losses.functional import cosine_softmax as kernel
from dml_losses.functional.classes import Virtual
from dml_losses.ranks.class_shard import RankClasses

Loss = Callable[..., torch.Tensor]
CASES: dict[str, tuple[Loss, Loss]] = {
    "norm-softmax": (F.norm_softmax, lambda x, y, w: reference.norm_softmax_value(x, y, w, 0.05)),
    "cos-face": (
        lambda x, y, w: F.cos_face(x, y, w, scale=8.0, margin=0.35),
        lambda x, y, w: reference.margin_softmax_value(x, y, w, 8.0, 0.0, 0.35),
    ),
    "arc-face": (
        lambda x, y, w: F.arc_face(x, y, w, scale=8.0, margin=0.5),
        lambda x, y, w: reference.margin_softmax_value(x, y, w, 8.0, 0.5, 0.0),
    ),
    "arc-face-wide": (  # most angles pass π − m
        lambda x, y, w: F.arc_face(x, y, w, scale=8.0, margin=1.5),
        lambda x, y, w: reference.margin_softmax_value(x, y, w, 8.0, 1.5, 0.0),
    ),
    "proxy-nca": (
        lambda x, y, w: F.proxy_nca(x, y, w, scale=3.0),
        lambda x, y, w: reference.proxy_nca_value(x, y, w, 3.0, False),
    ),
    "proxy-nca-positive": (
        lambda x, y, w: F.proxy_nca(x, y, w, scale=3.0, positive_in_denominator=True),
        lambda x, y, w: reference.proxy_nca_value(x, y, w, 3.0, True),
    ),
    "proxy-anchor": (
        lambda x, y, w: F.proxy_anchor(x, y, w, scale=32.0, margin=0.1),
        lambda x, y, w: reference.proxy_anchor_value(x, y, w, 32.0, 0.1),
    ),
    "softmax": (F.softmax, lambda x, y, w: reference.softmax_value(x, y, w, False)),
    "virtual-softmax": (F.virtual_softmax, lambda x, y, w: reference.softmax_value(x, y, w, True)),
    "curricular-face": (
        lambda x, y, w: F.curricular_face(x, y, w, torch.tensor(0.3), scale=8.0, margin=0.5),
        lambda x, y, w: reference.curricular_face_value(x, y, w, 0.3, 8.0, 0.5),
    ),
    "heated-up-l2": (
        lambda x, y, w: F.heated_up_softmax(x, y, w, alpha=16.0),
        lambda x, y, w: reference.norm_softmax_value(x, y, w, 1 / 16),
    ),
    "heated-up-batch": (
        lambda x, y, w: F.heated_up_softmax(x, y, w, alpha=16.0, feature_norm="batch"),
        lambda x, y, w: reference.heated_up_batch_value(x, y, w, 16.0),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "num_classes", [2, 3, 7, 12]
)  # with twelve, five classes aren't in the batch
@BLOCKS
def test_value_and_gradients_are_those_of_the_equation(
    name: str, num_classes: int, kept: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_blocks(monkeypatch, kept, size)
    fast, slow = CASES[name]
    x, w = rows(9, 0).requires_grad_(), rows(num_classes, 1).requires_grad_()
    y = torch.tensor([0, 3, 1, 6, 3, 2, 0, 5, 4]) % num_classes
    value, expected = fast(x, y, w), slow(x, y, w)
    # Both sides use float64, except for CurricularFace's t, which is 0.3 in float32.
    tolerance = 1e-7 if name == "curricular-face" else 1e-11
    assert_same_gradients(value, expected, (x, w), (tolerance, 1e-14), (1e3 * tolerance, tolerance))


@pytest.mark.parametrize(
    ("rows_move", "weights_move"), [(True, True), (True, False), (False, True)]
)
@pytest.mark.parametrize("constants", [False, True])
@BLOCKS
def test_the_fakes_of_the_operators_have_the_shapes_of_their_results(
    rows_move: bool,
    weights_move: bool,
    constants: bool,
    kept: bool,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_blocks(monkeypatch, kept, size)
    calls = []

    def note(operator: Loss, *inputs: object) -> torch.Tensor:
        calls.append(inputs)
        return operator(*inputs)

    for name in ("_compute", "_differentiate"):
        monkeypatch.setattr(kernel, name, partial(note, getattr(kernel, name)))
    x, w = rows(4, 7).requires_grad_(rows_move), rows(4, 8).requires_grad_(weights_move)
    past = Virtual(w, rows(2, 11), torch.tensor([2, 3]), (rows(2, 9), rows(2, 10)))
    y = torch.tensor([0, 1, 1, 0])
    F.sub_center_arc_face(x, y, past if constants else w, centers_per_class=2).backward()
    operators = (torch.ops.dml_losses.cosine_softmax, torch.ops.dml_losses.cosine_softmax_gradients)
    for operator, inputs in zip(operators, calls, strict=True):
        torch.library.opcheck(
            operator.default, inputs, test_utils=("test_schema", "test_faketensor")
        )


def test_a_block_of_proxies_without_any_positive_only_pushes() -> None:
    """A block has 512 of the 520 proxies; the last eight form a block without any positive in the
    batch.
    """
    x, w, y = rows(3, 14).requires_grad_(), rows(520, 15).requires_grad_(), torch.tensor([0, 2, 0])
    value = F.proxy_anchor(x, y, w, scale=8.0)
    expected = reference.proxy_anchor_value(x, y, w, 8.0, 0.1)
    assert_same_gradients(value, expected, (x, w), (1e-11, 0), (1e-8, 1e-11))


@pytest.mark.parametrize("centers", [1, 3])
def test_soft_triple_is_its_equation(centers: int) -> None:
    x, w = rows(7, 2).requires_grad_(), rows(4 * centers, 3).requires_grad_()
    y = torch.tensor([0, 3, 1, 2, 3, 3, 0])
    value = F.soft_triple(x, y, w, centers_per_class=centers)
    expected = reference.soft_triple_value(x, y, w, centers, 20.0, 0.1, 0.01, 0.2)
    assert_same_gradients(value, expected, (x, w), (1e-11, 0), (1e-8, 1e-11))


def test_soft_triple_labels_count_classes_and_not_centers() -> None:
    loss = SoftTriple(num_classes=3, embedding_dim=5, centers_per_class=4)
    assert loss.class_weights.shape == (12, 5)
    with pytest.raises(ValueError, match=r"labels contains 3; expected class indices in \[0, 3\)"):
        loss(rows(2, 4), torch.tensor([0, 3]))


@pytest.mark.parametrize("name", CASES)
def test_one_class_gives_a_finite_value_and_gradient(name: str) -> None:
    x, w = rows(4, 5).requires_grad_(), rows(1, 6).requires_grad_()
    value = CASES[name][0](x, torch.zeros(4, dtype=torch.int64), w)
    assert torch.isfinite(value)
    for gradient in grad(value, (x, w)):
        assert torch.isfinite(gradient).all()


ANGULAR: dict[str, Loss] = {
    "arc-face": lambda x, y, w: F.arc_face(x, y, w, scale=8.0),
    "curricular-face": lambda x, y, w: F.curricular_face(x, y, w, torch.tensor(0.3), scale=8.0),
}


@pytest.mark.parametrize("name", ANGULAR)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_embeddings_on_their_own_class_weight_have_the_gradient_of_the_other_classes(
    name: str, sign: float
) -> None:
    """The angle does not have a derivative at 0° and 180°, and some of 100 rounded float32 cosines
    exceed 1.
    """
    w = rows(100, 9).float()
    found = []
    for dtype in (torch.float32, torch.float64):
        x = (sign * w).to(dtype).requires_grad_()
        value = ANGULAR[name](x, torch.arange(100), w.to(dtype))
        found.append((value.detach().double(), grad(100 * value, x)[0].double()))
    # Rounding hides the direction to the class: the error is the scale times 1e-7 / 3e-4, the
    # smallest sine.
    torch.testing.assert_close(*found, rtol=1e-4, atol=8e-3)


@pytest.mark.parametrize("name", ["arc-face", "curricular-face"])
@pytest.mark.parametrize("distance", [1e-4, 1e-2])
def test_near_the_own_class_the_angular_margin_is_still_that_of_the_equation(
    name: str, distance: float
) -> None:
    fast, slow = CASES[name]
    w, y = rows(6, 12), torch.arange(6)
    x = (w + distance * rows(6, 13)).requires_grad_()
    value, expected = fast(x, y, w), slow(x, y, w)
    # arccos loses digits when the sine is below 1, and CurricularFace's t is 0.3 in float32.
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(grad(value, x)[0], grad(expected, x)[0], rtol=1e-4, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(
    margin=st.floats(0.1, 1.5),
    progress=st.floats(-1, 1),
    distance=st.sampled_from([1e-3, 0.1, 1.0]),
    seed=st.integers(0, 2**16),
)
def test_past_pi_curricular_faces_hard_negatives_exceed_the_turned_cosine(
    margin: float, progress: float, distance: float, seed: int
) -> None:
    """Embeddings are opposite to the class, where cos(θ + m) differs most from the logit that
    replaces it.
    """
    w, noise, y = rows(12, seed), rows(9, seed + 1), torch.arange(9)
    x, t = distance * noise - w[y], torch.tensor(progress, dtype=torch.float64)
    ways: list[Loss] = [
        lambda x, w: F.curricular_face(x, y, w, t, scale=8.0, margin=margin),
        lambda x, w: F.curricular_face(
            x, y, RankClasses(w, 0, len(w)), t, scale=8.0, margin=margin
        ),
        lambda x, w: reference.curricular_face_value(x, y, w, progress, 8.0, margin),
    ]
    sides = [(x.clone().requires_grad_(), w.clone().requires_grad_()) for _ in ways]
    values = [way(*side) for way, side in zip(ways, sides, strict=True)]
    gradients = [grad(value, side) for value, side in zip(values, sides, strict=True)]
    for value, found in zip(values[:2], gradients):
        # In float64, arccos and the sine lose half of the digits near 180°.
        torch.testing.assert_close(value, values[2], rtol=1e-7, atol=0)
        torch.testing.assert_close(found, gradients[2], rtol=1e-4, atol=1e-6)


def test_curricular_faces_t_is_a_moving_average_in_training_only() -> None:
    loss = CurricularFace(4, 5, momentum=0.25)
    x, y = rows(6, 10).float(), torch.arange(6) % 4
    cosine = torch.nn.functional.cosine_similarity(x, loss.class_weights[y].detach()).mean()
    loss(x, y)
    torch.testing.assert_close(loss.progress, 0.25 * cosine)
    loss(x, y)
    torch.testing.assert_close(loss.progress, (0.25 + 0.75 * 0.25) * cosine)
    before = loss.progress.clone()
    loss.eval()(x, y)
    assert torch.equal(loss.progress, before)


def test_heated_up_keeps_the_statistics_that_torch_would() -> None:
    loss, norm = HeatedUpSoftmax(4, 5, feature_norm="batch"), torch.nn.BatchNorm1d(5, affine=False)
    for seed in range(3):
        x = rows(6, seed).float()
        loss(x, torch.arange(6) % 4)
        norm(x)
    torch.testing.assert_close(loss.running_mean, norm.running_mean)
    torch.testing.assert_close(loss.running_var, norm.running_var)
    x = rows(3, 4).float()
    evaluated = loss.evaluation_embeddings(x)
    torch.testing.assert_close(evaluated, torch.nn.functional.normalize(norm.eval()(x)))

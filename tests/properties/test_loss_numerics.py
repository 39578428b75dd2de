"""Properties of all registered losses, for batches of any shape, dtype, label pattern and
magnitude.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from losses_support.registered import PAIR_LOSSES, REGISTERED, build

import dml_losses

# A large number of losses is tested, so use a fifth of the profile's examples (see the root
# conftest.py).
few = settings(max_examples=settings.default.max_examples // 5)

CLASSES, DIM = 5, 6
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SCALED = {  # all losses with a scale, at a much larger scale than in the papers
    "instance-cross-entropy": {"scale": 1e4},
    "norm-softmax": {"temperature": 1e-4},
    "heated-up-softmax": {"alpha": 1e4},
    "cos-face": {"scale": 1e4},
    "arc-face": {"scale": 1e4},
    "sub-center-arc-face": {"scale": 1e4},
    "ada-face": {"scale": 1e4},
    "curricular-face": {"scale": 1e4},
    "proxy-nca": {"scale": 1e4},
    "proxy-anchor": {"scale": 1e4},
    "soft-triple": {"scale": 1e4},
    "ranked-list": {"negative_temperature": 1e4, "positive_temperature": 1e4},
    "recall-at-k-surrogate": {"rank_temperature": 1e-4},
    "smooth-ap": {"temperature": 1e-4},
    "sup-con": {"temperature": 1e-4},
    "multi-similarity": {"alpha": 1e4, "beta": 1e4},
    "info-nce": {"temperature": 1e-4, "max_scale": 1e4},
    "siglip": {"scale": 1e4},
    "sup-ap": {"temperature": 1e-4, "slope": 1e4},
}


def make(name: str, device: str = "cpu", **options: float) -> torch.nn.Module:
    torch.manual_seed(0)
    return build(name, CLASSES, DIM, **options).to(device)


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw rows of very different norms, some zero, some repeated, and labels of any pattern, such
    as all equal.
    """
    size = draw(st.integers(1, 12))
    seed = draw(st.integers(0, 2**31))
    x = torch.randn(size, DIM, generator=torch.Generator().manual_seed(seed))
    norms = st.sampled_from([1e-40, 1e-20, 1e-6, 1.0, 1e3, 1e6])
    x = x * torch.tensor(draw(st.lists(norms, min_size=size, max_size=size)))[:, None]
    for row in draw(st.lists(st.integers(0, size - 1), max_size=3)):
        x[row] = 0
    for row in draw(st.lists(st.integers(0, size - 1), max_size=3)):
        x[row] = x[0]
    labels = draw(
        st.lists(st.integers(0, draw(st.integers(0, CLASSES - 1))), min_size=size, max_size=size)
    )
    return x, torch.tensor(labels)


def assert_finite(
    loss: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype
) -> None:
    """Check the value, and the gradients of embeddings and parameters, for rows clamped to the
    dtype's range.
    """
    largest = torch.finfo(dtype).max
    leaf = x.double().clamp(-largest, largest).to(dtype).requires_grad_()
    value = loss(leaf, y)
    assert torch.isfinite(value)
    for gradient in torch.autograd.grad(value, (leaf, *loss.parameters())):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in REGISTERED), *SCALED.items()]
)
@few
@given(batch=batches(), dtype=st.sampled_from(DTYPES))
def test_value_and_gradient_are_finite_at_any_scale(
    name: str,
    options: dict[str, float],
    device: str,
    batch: tuple[torch.Tensor, torch.Tensor],
    dtype: torch.dtype,
) -> None:
    x, y = batch
    assert_finite(make(name, device, **options), x.to(device), y.to(device), dtype)


SUMS = {  # wrappers that add losses of the same embeddings
    "cross-batch-memory": lambda loss: dml_losses.CrossBatchMemory(loss, capacity=12),
    "matryoshka": lambda loss: dml_losses.Matryoshka(loss, [2, 4, DIM]),
    "sum": lambda loss: dml_losses.SumOfLosses({"once": loss, "spread": dml_losses.KoLeo()}),
}


@pytest.mark.parametrize(
    ("name", "wrapper"),
    [
        (name, wrapper)
        for name in REGISTERED
        for wrapper in SUMS
        if wrapper != "cross-batch-memory" or name in PAIR_LOSSES
    ],
)
@pytest.mark.parametrize("size", [1e-7, 1e-6, 1e-5])
def test_a_sum_of_losses_of_short_float16_rows_is_finite(
    name: str, wrapper: str, size: float
) -> None:
    wrapped = SUMS[wrapper](make(name).half())
    for seed in range(4):
        x = size * torch.randn(12, DIM, generator=torch.Generator().manual_seed(seed))
        assert_finite(wrapped, x, torch.arange(12) % CLASSES, torch.float16)


@pytest.mark.parametrize("name", REGISTERED)
@few
@given(batch=batches())
def test_autocast_changes_nothing(
    name: str, device: str, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """Losses compute in float32 in any surrounding precision."""
    x, y = (part.to(device) for part in batch)
    plain_x, cast_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    plain = make(name, device)(plain_x, y)
    with torch.autocast(device, dtype=torch.bfloat16):
        cast = make(name, device)(cast_x, y)
    plain_gradient, cast_gradient = (
        torch.autograd.grad(plain, plain_x)[0],
        torch.autograd.grad(cast, cast_x)[0],
    )
    # On a GPU, the order of a gradient's sums varies between calls; bfloat16's error would be 1e-3.
    rtol, atol = (0.0, 0.0) if device == "cpu" else (1e-5, 1e-5 * float(plain_gradient.abs().max()))
    torch.testing.assert_close(cast, plain, rtol=rtol, atol=0)
    torch.testing.assert_close(cast_gradient, plain_gradient, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", REGISTERED)
@few
@given(seed=st.integers(0, 2**31), size=st.integers(2, 40))
def test_float32_is_near_float64(name: str, device: str, seed: int, size: int) -> None:
    """The tolerance of 1e-5 is the rounding error of cosines, 1e-7, times the losses' scales, for
    losses near 1.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, DIM, generator=generator).to(device)
    y = torch.randint(0, CLASSES, (size,), generator=generator).to(device)
    loss = make(name, device).eval()  # in training, CurricularFace's t would change between calls
    torch.testing.assert_close(
        loss(x, y).double(), loss.double()(x.double(), y), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", PAIR_LOSSES)
@few
@example(batch=(torch.tensor([[2.05, -0.585, 0.398, 2.01]]).expand(3, 4), torch.tensor([0, 0, 1])))
@given(batch=batches())
def test_a_pair_loss_only_compares_labels_for_equality(
    name: str, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """If labels are above 2⁵³, negative or reordered, the loss should only be summed in a different
    order.
    """
    # In float32, the error of the distance of equal rows, √(2 - 2 · cosine), can be 3e-4.
    x, y = batch[0].double(), batch[1]
    renamed = torch.tensor([2**60 + 1, -7, 2**60, 0, 3])[y]
    torch.testing.assert_close(make(name)(x, renamed), make(name)(x, y), rtol=1e-5, atol=1e-6)

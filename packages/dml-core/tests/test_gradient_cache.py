"""Micro-batches give the gradient of the full batch, for any loss, with dropout, batch norms and
mixed precision.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from dml_core import GradientCache, backward_in_micro_batches

ROWS, DIM = 11, 6
LABELS = torch.arange(ROWS) % 4


def make_network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), *layers, nn.Tanh(), nn.Linear(8, DIM)).double()


def inputs() -> Tensor:
    return torch.randn(ROWS, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def pair_loss(x: Tensor) -> Tensor:
    """Compute a loss over all pairs, which needs the full batch."""
    same = (LABELS[:, None] == LABELS).fill_diagonal_(False)
    return ((normalize(x) @ normalize(x).T).exp() * torch.where(same, -1, 1)).mean()


class ClassLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.weights = nn.Parameter(torch.randn(4, DIM, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return cross_entropy(x @ self.weights.to(x.dtype).T, LABELS)


def gradients(*modules: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for module in modules for parameter in module.parameters()]


@pytest.mark.parametrize("micro_batch", [1, 3, 4, 10, 11, 50])
@pytest.mark.parametrize("make_loss", [lambda: pair_loss, ClassLoss], ids=["pairs", "classes"])
def test_the_gradient_is_that_of_the_whole_batch(
    make_loss: Callable[[], Callable], micro_batch: int
) -> None:
    found = []
    for size in (None, micro_batch):
        network, loss = make_network(), make_loss()
        if size is None:
            value = loss(network(inputs()))
            value.backward()
        else:
            value = backward_in_micro_batches(network, inputs(), loss, size)
            assert not value.requires_grad
        own = [loss] if isinstance(loss, nn.Module) else []
        found.append([value.detach(), *gradients(network, *own)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-14)


def test_gradients_add_to_those_of_earlier_calls() -> None:
    network = make_network()
    for _ in range(2):
        backward_in_micro_batches(network, inputs(), pair_loss, 4)
    twice = gradients(network)
    network.zero_grad()
    backward_in_micro_batches(network, inputs(), pair_loss, 4)
    torch.testing.assert_close(
        twice, [2 * gradient for gradient in gradients(network)], rtol=1e-12, atol=0
    )


def test_both_passes_draw_the_same_dropout_and_later_draws_go_on() -> None:
    network = make_network(nn.Dropout(0.5))
    outputs: list[Tensor] = []
    network.register_forward_hook(lambda module, given, output: outputs.append(output.detach()))
    torch.manual_seed(3)
    cache = GradientCache(network, 4)
    embeddings = cache.embed(inputs())
    drawn = torch.rand(3)  # a loss can draw random numbers, too
    embeddings.square().sum().backward()
    cache.backward()
    after = torch.rand(3)
    assert torch.equal(torch.cat(outputs[:3]), torch.cat(outputs[3:]))
    torch.manual_seed(3)
    GradientCache(network, 4).embed(inputs())
    assert torch.equal(torch.rand(6), torch.cat((drawn, after)))


def test_batch_norms_count_each_micro_batch_once() -> None:
    network = make_network(nn.BatchNorm1d(8))
    backward_in_micro_batches(network, inputs(), pair_loss, 4)
    norm = network[1]
    assert norm.num_batches_tracked == 3
    once = make_network(nn.BatchNorm1d(8))
    for part in torch.tensor_split(inputs(), 3):
        once(part)
    torch.testing.assert_close(norm.running_mean, once[1].running_mean)


@pytest.mark.parametrize("scaled", [False, True])
def test_under_autocast_both_passes_have_its_precision(scaled: bool) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=scaled)
    found = []
    for size in (None, 4):
        network, loss = make_network().float(), ClassLoss().float()
        seen: list[torch.dtype] = []
        network.register_forward_hook(
            lambda module, given, output, seen=seen: seen.append(output.dtype)
        )
        with torch.autocast("cpu", torch.bfloat16):
            if size is None:
                value = loss(network(inputs().float()))
                scaler.scale(value).backward()
            else:
                value = backward_in_micro_batches(
                    network, inputs().float(), loss, size, scaler=scaler
                )
        assert set(seen) == {torch.bfloat16}
        found.append([value.detach(), *gradients(network, loss)])
    assert all(gradient.abs().sum() > 0 for gradient in found[1])
    # bfloat16 rounds each micro-batch's gradient to three digits, and then rounds the sum of these
    # gradients.
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0.02 * (4 if scaled else 1))
    scale = 4.0 if scaled else 1.0
    unscaled = [gradient / scale for gradient in found[1][1:]]
    exact_network, exact_loss = make_network(), ClassLoss()
    exact_loss(exact_network(inputs())).backward()
    for gradient, exact in zip(unscaled, gradients(exact_network, exact_loss), strict=True):
        torch.testing.assert_close(gradient.double(), exact, rtol=0.1, atol=0.02)


def test_wrong_arguments_raise() -> None:
    network = make_network()
    with pytest.raises(ValueError, match="micro_batch is 0; expected at least 1"):
        GradientCache(network, 0)
    with pytest.raises(TypeError, match=r"micro_batch is 2\.5; expected an integer"):
        GradientCache(network, 2.5)  # type: ignore[arg-type]
    cache = GradientCache(network, 4)
    cache.embed(inputs())
    with pytest.raises(
        RuntimeError, match="the embeddings have no gradient; call the loss's backward"
    ):
        cache.backward()


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device; other tests use the CPU"
)
def test_on_a_gpu_dropout_and_precision_are_repeated() -> None:
    network = make_network(nn.Dropout(0.5)).float().cuda()
    outputs: list[Tensor] = []
    network.register_forward_hook(lambda module, given, output: outputs.append(output.detach()))
    with torch.autocast("cuda", torch.bfloat16):
        backward_in_micro_batches(
            network, inputs().float().cuda(), lambda x: x.float().square().sum(), 4
        )
    assert outputs[0].dtype == torch.bfloat16
    assert torch.equal(torch.cat(outputs[:3]), torch.cat(outputs[3:]))

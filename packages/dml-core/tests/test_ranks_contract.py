"""The contract of losses over ranks accepts a correct loss, and each test finds the fault that it
should find.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dml_core import Rows, all_gather_rows, rank_and_world_size
from dml_core.testing import RanksContract


class Similarities(nn.Module):
    """A loss of all pairs of rows, with a parameter, a parameter divided over ranks, and a
    buffer.
    """

    average: Tensor

    def __init__(self, dim: int, fault: str = "") -> None:
        super().__init__()
        rank, world_size = rank_and_world_size()
        first, last = (number * dim // world_size for number in (rank, rank + 1))
        self.fault, self.rows = fault, Rows(first, dim)
        self.scale = nn.Parameter(torch.ones(()))
        self.part = nn.Parameter(torch.arange(1.0, dim + 1)[first:last])
        self.register_buffer("average", torch.zeros(dim))

    def sharded_parameters(self) -> dict[str, Rows]:
        return {"part": self.rows}

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        rank, _ = rank_and_world_size()
        rows = embeddings
        if self.fault != "own rows":
            gradients = "sum" if self.fault == "unscaled gradient" else "mean"
            rows = all_gather_rows(embeddings, gradients=gradients)
        self.average += (embeddings if self.fault == "own buffer" else rows).detach().mean(dim=0)
        scale = self.scale
        if self.fault == "own gradient":
            scale = scale * (rank + 1) - scale.detach() * rank
        pairs = (scale * rows @ rows.T).tanh().mean()
        own = (
            self.part
            @ rows.detach().mean(dim=0)[self.rows.first : self.rows.first + len(self.part)]
        )
        total = all_gather_rows(own.detach()[None]).sum()
        return pairs + total + (own - own.detach())  # adds 0, with the gradient of the local part


class TestCorrect(RanksContract):
    fault = ""

    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        return Similarities(embedding_dim, self.fault)


class OwnRows(TestCorrect):
    fault, steps, __test__ = "own rows", 1, False


class UnscaledGradient(TestCorrect):
    fault, steps, __test__ = "unscaled gradient", 1, False


class OwnGradient(TestCorrect):
    fault, steps, __test__ = "own gradient", 1, False


class OwnBuffer(TestCorrect):
    fault, steps, __test__ = "own buffer", 1, False


TESTS: dict[str, Callable[[RanksContract], None]] = {
    name: test for name, test in vars(RanksContract).items() if name.startswith("test_")
}


@pytest.mark.parametrize(
    ("contract", "test", "message"),
    [
        (
            OwnRows,
            "test_the_mean_of_the_ranks_losses_is_one_ranks_loss",
            "the mean loss differs from one rank's",
        ),
        (
            UnscaledGradient,
            "test_gradients_of_embeddings_are_one_ranks",
            r"the gradient of the embeddings differs .*: it is 0\.5 times one rank's",
        ),
        (
            OwnGradient,
            "test_gradients_of_parameters_are_one_ranks",
            r"the gradient of scale on rank 0 differs .*: it is 1\.5 times one rank's",
        ),
        (
            OwnBuffer,
            "test_buffers_are_one_ranks",
            "the buffer average on rank 0 differs from one rank's",
        ),
    ],
)
def test_a_fault_fails_its_test(contract: type[RanksContract], test: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        TESTS[test](contract())
    if contract is not OwnRows:  # OwnRows changes all results, so more tests fail
        for name in TESTS.keys() - {test}:
            TESTS[name](contract())


def test_a_contract_inside_a_function_says_where_it_belongs() -> None:
    class Inside(TestCorrect): ...

    with pytest.raises(
        TypeError, match="Inside is defined in a function; move it to the top level of a module"
    ):
        Inside().test_buffers_are_one_ranks()

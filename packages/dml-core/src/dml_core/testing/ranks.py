"""The contract of losses over ranks. Shapes: `W` ranks, `R` rows of a rank, `B` rows of all ranks,
`D` dimension.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
import torch.multiprocessing
from torch import Tensor, distributed, nn

from dml_core.protocols.losses import ShardedLoss
from dml_core.testing.losses import DIM, NUM_CLASSES

_TIMEOUT = timedelta(minutes=10)  # of a rank that waits for the others


class RanksContract(ABC):
    """W ranks with parts of a batch must compute the loss and the gradients that one rank computes
    for the whole batch.

    Ranks train with the mean of their losses: (1/W) Σ_r L_r(x_1, …, x_W) = l(x_1 ∪ … ∪ x_W), with
    the same gradients.

    Use it to check a loss that gathers rows or divides class weights over ranks, from any library.
    The ranks are processes on this machine that communicate by gloo; they import the file of the
    test class, which must be defined at the top level of its module. They compute in float64.

    Override `compute_loss`, if the loss is called with more than embeddings and labels, and these
    attributes:

    Attributes:
        rows_per_rank: R for each of the W ranks.
        gradients: how the ranks combine the network's gradients: ``"mean"``, like
            DistributedDataParallel, or ``"sum"``. The mean of the parameters' gradients must always
            equal one rank's.
        steps: the number of calls. After each, all parameters take a step of SGD.
        tolerance: the largest difference in any comparison, relative to the largest number.
    """

    rows_per_rank: Sequence[int] = (6, 6)
    gradients: Literal["mean", "sum"] = "mean"
    steps = 4
    tolerance = 1e-6

    @abstractmethod
    def make_loss(self, num_classes: int, embedding_dim: int) -> nn.Module:
        """Make a rank's loss, inside its process group; one rank is a process group of one."""

    def compute_loss(self, loss: nn.Module, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Call the loss with a rank's embeddings (R, D) and labels (R,).

        For two towers, split the columns: ``image, text = embeddings.chunk(2, dim=1)``.
        """
        value: Tensor = loss(embeddings, labels)
        return value

    def test_the_mean_of_the_ranks_losses_is_one_ranks_loss(self) -> None:
        """At each step, the mean of the ranks' losses must equal the loss of a single rank."""
        ranks, alone = _run_worlds(type(self))
        self._assert_close(
            torch.stack([rank["values"] for rank in ranks]).mean(dim=0),
            alone["values"],
            "the mean loss",
        )

    def test_gradients_of_embeddings_are_one_ranks(self) -> None:
        """At each step, the gradient that the ranks' networks combine must equal a single
        rank's.
        """
        ranks, alone = _run_worlds(type(self))
        factor = len(ranks) if self.gradients == "mean" else 1
        found = torch.cat([rank["embeddings"] for rank in ranks], dim=1) / factor
        self._assert_close(found, alone["embeddings"], "the gradient of the embeddings")

    def test_gradients_of_parameters_are_one_ranks(self) -> None:
        """At each step, the mean of the ranks' gradients must equal a single rank's; see
        `ShardedLoss` for parts.
        """
        self._assert_same_tensors("parameters", "the gradient of ")

    def test_buffers_are_one_ranks(self) -> None:
        """After all steps, each rank's memories and moving averages must equal those of a single
        rank.
        """
        self._assert_same_tensors("buffers", "the buffer ")

    def _assert_same_tensors(self, kind: str, what: str) -> None:
        ranks, alone = _run_worlds(type(self))
        for number, rank in enumerate(ranks):
            assert rank[kind].keys() == alone[kind].keys(), (
                f"the {kind} of rank {number} are {sorted(rank[kind])}; expected "
                f"{sorted(alone[kind])}, as on one rank"
            )
            for name, (first, found) in rank[kind].items():
                expected = alone[kind][name][1]
                expected = (
                    expected if first is None else expected[:, first : first + found.shape[1]]
                )
                self._assert_close(found, expected, f"{what}{name} on rank {number}")

    def _assert_close(self, found: Tensor, expected: Tensor, what: str) -> None:
        assert found.shape == expected.shape, (
            f"{what} has shape {tuple(found.shape)}; one rank's has {tuple(expected.shape)}"
        )
        found, expected = found.double(), expected.double()
        largest = float(expected.abs().max()) if expected.numel() else 0.0
        bound = self.tolerance * max(largest, 1e-12)
        error = float((found - expected).abs().max()) if expected.numel() else 0.0
        factor = float((found * expected).sum() / expected.square().sum().clamp_min(1e-30))
        scaled = bool(((found - factor * expected).abs() <= bound).all())
        assert error <= bound, (
            f"{what} differs from one rank's by {error / max(largest, 1e-12):.1e} relative; at "
            f"most {self.tolerance}"
        ) + (f": it is {factor:.4g} times one rank's" if scaled else "")


def run_ranks(target: Callable[..., None], size: int, *arguments: object) -> None:
    """Call `target(rank, *arguments)` in a process per rank; if a rank fails, end all and raise its
    error.
    """
    # A fork server has no threads, and can import modules once for all ranks
    # (`set_forkserver_preload`).
    start_method = "forkserver" if sys.platform != "win32" else "spawn"
    torch.multiprocessing.start_processes(  # type: ignore[attr-defined,no-untyped-call]  # documented, not exported
        target, arguments, nprocs=size, start_method=start_method
    )


@contextmanager
def joined(rank: int, size: int, folder: Path, backend: str = "gloo") -> Iterator[None]:
    """Join the other ranks, which must be given the same folder."""
    torch.set_num_threads(1)
    store = distributed.FileStore(str(folder / f"store of {size}"), size)  # type: ignore[attr-defined]  # as above
    distributed.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=_TIMEOUT
    )
    yield
    distributed.destroy_process_group()


@cache
def _run_worlds(contract: type[RanksContract]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run W ranks, and a process group of one with all rows, and return their results."""
    if "<locals>" in contract.__qualname__:
        raise TypeError(
            f"{contract.__qualname__} is defined in a function; move it to the top level of a "
            "module"
        )
    world_size = len(contract.rows_per_rank)
    with TemporaryDirectory() as folder:
        source = inspect.getfile(contract), contract.__module__, contract.__qualname__
        run_ranks(_run_rank, world_size + 1, *source, Path(folder))
        *ranks, alone = (torch.load(Path(folder) / str(rank)) for rank in range(world_size + 1))
    return ranks, alone


def _run_rank(rank: int, file: str, module: str, qualname: str, folder: Path) -> None:
    """Save this rank's results in the folder; the process after the last rank is a process group of
    one.
    """
    torch.set_default_dtype(torch.float64)
    spec = importlib.util.spec_from_file_location(module, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[module] = loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    contract: RanksContract = attrgetter(qualname)(loaded)()
    rows = contract.rows_per_rank
    first, name = sum(rows[:rank]), rank
    if rank == len(rows):
        rank, first, rows = 0, 0, (sum(rows),)
    with joined(rank, len(rows), folder):
        torch.save(_train(contract, slice(first, first + rows[rank])), folder / str(name))


def _train(contract: RanksContract, own: slice) -> dict[str, Any]:
    """Take all steps with these rows of each batch, and return values, gradients and buffers."""
    torch.manual_seed(0)
    loss = contract.make_loss(NUM_CLASSES, DIM).train()
    first_rows = {
        id(module.get_parameter(name)): rows.first
        for module in loss.modules()
        if isinstance(module, ShardedLoss)
        for name, rows in module.sharded_parameters().items()
    }
    values, embeddings = [], []
    gradients: dict[str, list[Tensor]] = {name: [] for name, _ in loss.named_parameters()}
    for step in range(contract.steps):
        generator = torch.Generator().manual_seed(step)
        x_BD = torch.randn(sum(contract.rows_per_rank), DIM, generator=generator)
        labels_B = torch.randint(0, NUM_CLASSES, (len(x_BD),), generator=generator)
        leaf_RD = x_BD[own].clone().requires_grad_()
        torch.manual_seed(step)  # for the loss's random numbers
        value = contract.compute_loss(loss, leaf_RD, labels_B[own])
        value.backward()  # type: ignore[no-untyped-call]
        values.append(value.detach())
        embeddings.append(torch.zeros_like(leaf_RD) if leaf_RD.grad is None else leaf_RD.grad)
        for name, parameter in loss.named_parameters():
            gradient = (
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
            )
            if id(parameter) not in first_rows:
                distributed.all_reduce(gradient)
                gradient /= distributed.get_world_size()
            parameter.data.sub_(gradient, alpha=0.05)
            parameter.grad = None
            gradients[name].append(gradient)
    return {
        "values": torch.stack(values),
        "embeddings": torch.stack(embeddings),
        "parameters": {
            name: (first_rows.get(id(parameter)), torch.stack(gradients[name]))
            for name, parameter in loss.named_parameters()
        },
        "buffers": {name: (None, buffer.clone()) for name, buffer in loss.named_buffers()},
    }

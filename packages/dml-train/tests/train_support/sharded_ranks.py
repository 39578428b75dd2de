"""Functions that ranks run in tests of training; use `in_ranks` to run a function on ranks.

Ranks are forked from a process that only imported the slow modules (conftest.py at the root lists
them).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.distributed import TCPStore

from dml_core import DmlError, Rows, all_gather_rows
from dml_train.ranks.ranks import Ranks, join_ranks
from dml_train.ranks.sharding import Shards
from dml_train.recipe.checking import parse
from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint
from dml_train.training.build import build
from dml_train.training.checkpoint import Checkpoint
from dml_train.training.trainer import Trainer
from train_support.run_traces import Stop, StopAt, same
from train_support.tiny_world import make_registry


def in_ranks(
    world_size: int, work: Callable[..., None], *arguments: Any, codes: Sequence[int] | None = None
) -> None:
    """Run `work` in `world_size` processes that can be joined, and check the exit codes (by default
    0).
    """
    context = multiprocessing.get_context("forkserver")
    # Like under torchrun, ranks use a store in the parent process to find other ranks. The store
    # will bind a free port directly; if this process only looked up a free port, a different
    # process could take the port.
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    environment = dict(os.environ)  # the fork server uses an older environment
    processes = [
        context.Process(
            target=_run_rank, args=(rank, world_size, store.port, environment, work, arguments)
        )
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    deadline = time.monotonic() + 600
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    exitcodes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()  # otherwise pytest would wait for a rank that waits for a dead rank
    assert exitcodes == (codes or [0] * world_size)


def _run_rank(
    rank: int,
    world_size: int,
    port: int,
    environment: dict[str, str],
    work: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    os.environ.clear()
    os.environ |= environment
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size}
    os.environ |= {name: str(value) for name, value in place.items()}
    os.environ |= {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    # Ranks must only wait for other ranks when imports are done, which can take long on a busy
    # machine.
    notes = _notes()
    notes.set(f"rank {rank} is here", "")
    notes.wait([f"rank {other} is here" for other in range(world_size)], timedelta(seconds=300))
    work(*arguments)


def _notes() -> TCPStore:
    """Connect to a key-value store that ranks share, which does not use the process group."""
    return TCPStore(
        "localhost", int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False
    )


def find_in_environment(name: str, value: str) -> None:
    assert os.environ[name] == value


def gather_large_gradients() -> None:
    """Gather with gradients that overflow float16 when doubled."""
    with join_ranks(120) as ranks:
        rows_RD = torch.ones(3, 2, dtype=torch.float16, requires_grad=True)
        gradient_BD = torch.arange(12, dtype=torch.float16).reshape(6, 2) + 40_000
        all_gather_rows(rows_RD).backward(gradient_BD)
        assert torch.equal(rows_RD.grad, gradient_BD[3 * ranks.rank : 3 * ranks.rank + 3])


def lose_the_other(silent: bool) -> None:
    """Let the second of 2 ranks die, immediately or when the first timed out; the first should
    report it.
    """
    with pytest.raises(
        DmlError, match=r"^rank 0 of 2 lost another rank, which died or was silent for 10 s"
    ):
        _gather_twice(silent)
    _notes().set("missed", "")


def _gather_twice(silent: bool) -> None:
    with join_ranks(10.0) as ranks:
        all_gather_rows(torch.zeros(1, 1))
        if ranks.rank == 1:
            if silent:
                # If this times out, this rank fails, not the first.
                _notes().wait(["missed"], timedelta(seconds=300))
            os.kill(os.getpid(), signal.SIGKILL)
        all_gather_rows(torch.zeros(1, 1))


def train_until(
    document: dict[str, Any], out: Path, last: int, plugins: Sequence[str] = ()
) -> None:
    """Train or resume, and stop after the step `last`; first check that the restored bits are the
    saved bits.

    `plugins` names modules to register.
    """
    with join_ranks(120) as ranks:
        registry = make_registry()
        registry.plugins.register(StopAt(last), distribution="stop")
        for name in plugins:
            registry.plugins.register(import_module(name), distribution=name)
        experiment = build(parse(document, registry), registry, ranks)
        folder = ranks.run_on_first(
            lambda: RunFolder(out) if out.exists() else RunFolder.create(out)
        )
        saved = ranks.run_on_first(lambda: checkpoint.newest_intact(folder.checkpoints))
        trainer = Trainer(experiment, folder, registry, Console(file=StringIO()), ranks)
        if saved:
            loaded, state = trainer.shards.split_state(), unite(saved)
            for path, own in loaded.rows.items():
                whole: Any = state
                for key in path.split("/"):
                    whole = whole[int(key) if key.isdigit() else key]
                assert torch.equal(own.values.cpu(), whole[own.first : own.first + len(own.values)])
            placed = {"loss": loaded.loss, "optimizer": loaded.optimizer}
            assert same_but_placeholders(placed, {name: state[name] for name in placed})
        try:
            trainer.train()
        except Stop:
            return
        assert last > experiment.num_steps


def unite(saved: Checkpoint) -> dict[str, Any]:
    """Read a checkpoint's state with all rows of the tensors that ranks share, as a reference for
    the loaded state.
    """
    parts, state = saved.parts(), saved.state()

    def walk(tree: Any, path: str) -> Any:
        if isinstance(tree, dict):
            return {
                key: walk(value, f"{path}/{key}".removeprefix("/")) for key, value in tree.items()
            }
        if isinstance(tree, torch.Tensor) and tree.is_meta:
            return parts.read(path, tree, 0, len(tree))
        return tree

    return walk(state, "")


def same_but_placeholders(placed: Any, whole: Any) -> bool:
    """Return whether a state equals a complete state, except for placeholders."""
    if isinstance(placed, dict):
        both = placed.keys() == whole.keys()
        return both and all(
            same_but_placeholders(value, whole[key]) for key, value in placed.items()
        )
    if isinstance(placed, torch.Tensor) and placed.is_meta:
        return placed.shape == whole.shape and placed.dtype == whole.dtype
    return same(placed, whole)


class Halves(nn.Module):
    """A loss module with three rows per rank."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.ones(3, 2))
        self.bias = nn.Parameter(torch.zeros(2))
        self._first, self._total = 3 * ranks.rank, 3 * ranks.world_size

    def sharded_parameters(self) -> dict[str, Rows]:
        return {"rows": Rows(self._first, self._total)}


def step_as_one() -> None:
    """Check that gradients are clipped by the norm of all rows, and that all ranks skip a step when
    any rank must.
    """
    with join_ranks(120) as ranks:
        loss = Halves(ranks)
        optimizer = torch.optim.SGD(loss.parameters(), lr=1.0)
        shards = Shards(loss, optimizer, ranks)
        assert shards.select_unsharded(loss.parameters()) == [loss.bias]

        loss.rows.grad = torch.full((3, 2), 1.0 + ranks.rank)
        loss.bias.grad = torch.full((2,), 3.0)
        norm = (6 * sum((1.0 + rank) ** 2 for rank in range(ranks.world_size)) + 2 * 9.0) ** 0.5
        torch.testing.assert_close(shards.clip(list(loss.parameters()), 1.0), torch.tensor(norm))
        torch.testing.assert_close(loss.bias.grad, torch.full((2,), 3.0 / norm))
        torch.testing.assert_close(loss.rows.grad, torch.full((3, 2), (1.0 + ranks.rank) / norm))

        scaler = shards.scaler(torch.device("cpu"), enabled=True)
        for spoilt in (True, False):
            optimizer.zero_grad()
            scaler.scale(loss.rows.sum() + loss.bias.sum()).backward()
            if spoilt and ranks.rank == 1:
                loss.rows.grad[0, 0] = torch.inf
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            assert (loss.bias == (0 if spoilt else -1)).all()
            assert (loss.rows == (1 if spoilt else 0)).all()
        assert scaler.get_scale() == 2.0**15

"""Parameters of the loss that are sharded over the ranks by rows, in training and in a checkpoint.

A rank saves only local rows; the state contains a placeholder of the tensor's shape and dtype, on
device ``meta``. A run can resume on any number of ranks. A single rank holds all rows, and saves
the tensor in the state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from dml_core import Rows, ShardedLoss
from dml_train.ranks.parts import OwnRows, Parts
from dml_train.ranks.ranks import Ranks


class SavedState(NamedTuple):
    """The state of loss and optimizer to save in a checkpoint, and the rows of this rank to save
    separately.

    `rows` are keyed by the placeholder's path: ``"loss/loss.class_weights"``,
    ``"optimizer/state/3/exp_avg"``.
    """

    loss: dict[str, Any]
    optimizer: dict[str, Any]
    rows: dict[str, OwnRows]


class Shards:
    """The sharded parameters of a loss and the optimizer state; empty if there is a single rank.

    Args:
        loss: a loss; the `ShardedLoss` modules in it, if any, list the sharded parameters.
        optimizer: the optimizer of these parameters; state tensors with the parameter's row count
            are sharded, too.
        ranks: the ranks that train together.
    """

    def __init__(self, loss: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks) -> None:
        self._loss, self._optimizer = loss, optimizer
        self._rows: dict[str, Rows] = {}
        if ranks.world_size > 1:
            self._rows = {
                f"{prefix}.{name}".removeprefix("."): rows
                for prefix, module in loss.named_modules()
                if isinstance(module, ShardedLoss)
                for name, rows in module.sharded_parameters().items()
            }
        self._names = {id(loss.get_parameter(name)): name for name in self._rows}

    def __bool__(self) -> bool:
        """Return whether the loss contains sharded parameters."""
        return bool(self._rows)

    def select_unsharded(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Select the parameters that aren't sharded."""
        return [parameter for parameter in parameters if id(parameter) not in self._names]

    def scaler(self, device: torch.device, *, enabled: bool) -> torch.amp.GradScaler:
        """Make a loss scaler. If gradients on any rank aren't finite, all ranks skip the step."""
        if self:
            # Import only when needed: this takes seconds, and few runs need it.
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

            return ShardedGradScaler(device.type, enabled=enabled, process_group=None)
        return torch.amp.GradScaler(device.type, enabled=enabled)

    def clip(self, parameters: list[nn.Parameter], limit: float) -> Tensor:
        """Clip the norm of all gradients, over the rows of all ranks, to `limit`; return the norm
        before clipping.
        """
        norm = gradient_norm(self.select_unsharded(parameters))
        if self:
            sharded = [parameter for parameter in parameters if id(parameter) in self._names]
            squared = gradient_norm(sharded).square()
            dist.all_reduce(squared)
            norm = (norm.square() + squared).sqrt()
        clip_grads_with_norm_(parameters, limit, norm)
        return norm

    def split_state(self) -> SavedState:
        """Split the state into the part common to all ranks and this rank's rows; this doesn't
        communicate or copy.
        """
        rows: dict[str, OwnRows] = {}

        def take(part: Tensor, name: str, path: str) -> Tensor:
            own = self._rows[name]
            rows[path] = OwnRows(part.detach(), own.first)
            return part.new_empty(own.total, *part.shape[1:], device="meta")

        loss, optimizer = self._loss.state_dict(), self._optimizer.state_dict()
        for name in self._rows:
            loss[name] = take(loss[name], name, f"loss/{name}")
        for index, name in self._indices().items():
            count = len(self._loss.get_parameter(name))
            state = optimizer["state"].get(index, {})
            sharded = {key: value for key, value in state.items() if _has_rows(value, count)}
            taken = {
                key: take(value, name, f"optimizer/state/{index}/{key}")
                for key, value in sharded.items()
            }
            if state:
                optimizer["state"][index] = {**state, **taken}
        return SavedState(loss, optimizer, rows)

    def load_state(self, loss: dict[str, Any], optimizer: dict[str, Any], stored: Parts) -> None:
        """Load this rank's rows of a state that was saved on any number of ranks.

        The optimizer keeps the current hyper-parameters (momentum, betas, …). Raise a ValueError if
        a different kind of optimizer saved the state, or the number of rows is different.

        Args:
            loss, optimizer: the parts of a `SavedState`; changed in place.
            stored: the rows that replace the placeholders.
        """
        groups = self._optimizer.state_dict()["param_groups"]
        if [group.keys() for group in groups] != [
            group.keys() for group in optimizer["param_groups"]
        ]:
            raise ValueError("a different kind of optimizer saved this state")
        for name, value in loss.items():
            if name in self._rows or is_placeholder(value):
                loss[name] = self._own_rows(value, name, f"loss/{name}", stored)
        names = self._indices()
        for index, state in optimizer["state"].items():
            name = names.get(index, "")
            for key, value in state.items():
                if is_placeholder(value) or (name and _has_rows(value, self._rows[name].total)):
                    state[key] = self._own_rows(
                        value, name, f"optimizer/state/{index}/{key}", stored
                    )
                elif self and isinstance(value, Tensor):
                    # Copy the tensor, since the mapped checkpoint file may be removed during the
                    # run.
                    state[key] = value.clone()
        self._loss.load_state_dict(loss)
        self._optimizer.load_state_dict({**optimizer, "param_groups": groups})

    def _indices(self) -> dict[int, str]:
        """Map the indices of sharded parameters in the optimizer's state to parameter names."""
        order = (
            parameter for group in self._optimizer.param_groups for parameter in group["params"]
        )
        return {
            index: self._names[id(parameter)]
            for index, parameter in enumerate(order)
            if id(parameter) in self._names
        }

    def _own_rows(self, value: Tensor, name: str, path: str, stored: Parts) -> Tensor:
        """Copy or read this rank's rows of a saved tensor; all rows if the parameter isn't
        sharded.
        """
        first, last = 0, len(value)
        if name in self._rows:
            first, total = self._rows[name]
            last = first + len(self._loss.get_parameter(name))
            if total != len(value):
                raise ValueError(
                    f"{path} contains {len(value)} rows; expected {total}, as in the loss"
                )
        if is_placeholder(value):
            return stored.read(path, value, first, last)
        return value[first:last].clone()


def is_placeholder(value: object) -> bool:
    """Return whether a value in a state is a placeholder for rows that ranks saved."""
    return isinstance(value, Tensor) and value.is_meta


def _has_rows(value: object, rows: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) == rows


def gradient_norm(parameters: list[nn.Parameter]) -> Tensor:
    """Compute the L2 norm of all gradients as a single vector; sum sparse rows with equal index
    first.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    # Use the coalesced values of a sparse gradient, since torch 2.11 can't compute norms of sparse
    # tensors.
    return get_total_norm([g.coalesce().values() if g.is_sparse else g for g in gradients])

"""Parameters of the loss that are sharded over the ranks by rows, and unsharded in a checkpoint.

A checkpoint holds what one process would have saved, so that any number of ranks can resume it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from dml_core import Rows, ShardedLoss
from dml_train.ranks.ranks import Ranks


class Shards:
    """The sharded parameters of a loss, and their optimizer's state; with one rank there are none.

    Args:
        loss: its modules name the parameters of which each rank holds some rows (`ShardedLoss`).
        optimizer: of these parameters; any of its tensors with as many rows as its parameter is sharded like it.
        ranks: those that train together.
    """

    def __init__(self, loss: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks) -> None:
        self._loss, self._optimizer, self._ranks = loss, optimizer, ranks
        self._rows: dict[str, Rows] = {}
        if ranks.world_size > 1:
            self._rows = {
                f"{prefix}.{name}".removeprefix("."): rows
                for prefix, module in loss.named_modules()
                if isinstance(module, ShardedLoss)
                for name, rows in module.sharded_parameters().items()
            }
        self._names = {id(loss.get_parameter(name)): name for name in self._rows}
        self._firsts = ranks.gather_object({name: rows.first for name, rows in self._rows.items()})

    def __bool__(self) -> bool:
        """Return whether the loss has any."""
        return bool(self._rows)

    def select_unsharded(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Select the parameters that every rank holds in full."""
        return [parameter for parameter in parameters if id(parameter) not in self._names]

    def scaler(self, device: torch.device, *, enabled: bool) -> torch.amp.GradScaler:
        """Make a loss scaler with which all ranks skip a step if the gradients of one of them aren't finite."""
        if self:
            # Imported here, since the import takes seconds and few runs need it.
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

            return ShardedGradScaler(device.type, enabled=enabled, process_group=None)
        return torch.amp.GradScaler(device.type, enabled=enabled)

    def clip(self, parameters: list[nn.Parameter], limit: float) -> Tensor:
        """Scale all gradients down to this norm, computed over all rows of all ranks, and return the norm before."""
        norm = gradient_norm(self.select_unsharded(parameters))
        if self:
            sharded = [parameter for parameter in parameters if id(parameter) in self._names]
            squared = gradient_norm(sharded).square()
            dist.all_reduce(squared)
            norm = (norm.square() + squared).sqrt()
        clip_grads_with_norm_(parameters, limit, norm)
        return norm

    def gather_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Gather the loss's and the optimizer's state, unsharded on the first rank only. Every rank must call it."""
        loss, optimizer = self._loss.state_dict(), self._optimizer.state_dict()
        loss = {
            name: self._gather_rows(value, name) if name in self._rows else value
            for name, value in loss.items()
        }
        for index, name in self._indices().items():
            rows = len(self._loss.get_parameter(name))
            if index in optimizer["state"]:
                optimizer["state"][index] = {
                    key: self._gather_rows(value, name) if _has_rows(value, rows) else value
                    for key, value in optimizer["state"][index].items()
                }
        return loss, optimizer

    def load_state(self, loss: dict[str, Any], optimizer: dict[str, Any]) -> None:
        """Load this rank's rows of a state that `gather_state` returned on any number of ranks.

        The optimizer keeps its own hyper-parameters (momentum, betas, …).

        Raises:
            ValueError: if the state is that of another kind of optimizer.
        """
        groups = self._optimizer.state_dict()["param_groups"]
        if [group.keys() for group in groups] != [group.keys() for group in optimizer["param_groups"]]:
            raise ValueError("the saved state is that of another kind of optimizer")
        for name in self._rows:
            loss[name] = self._slice_rows(loss[name], name)
        names = self._indices()
        for index, state in optimizer["state"].items():
            for key, value in state.items():
                if index in names and _has_rows(value, self._rows[names[index]].total):
                    state[key] = self._slice_rows(value, names[index])
                elif self and isinstance(value, Tensor):
                    # Copied, since the mapped checkpoint file may be removed during the run.
                    state[key] = value.clone()
        self._loss.load_state_dict(loss)
        self._optimizer.load_state_dict({**optimizer, "param_groups": groups})

    def _indices(self) -> dict[int, str]:
        """Map the indices of sharded parameters in the optimizer's state to their names."""
        order = (parameter for group in self._optimizer.param_groups for parameter in group["params"])
        return {
            index: self._names[id(parameter)]
            for index, parameter in enumerate(order)
            if id(parameter) in self._names
        }

    def _gather_rows(self, part: Tensor, name: str) -> Tensor:
        """Gather all ranks' rows on the first rank, received in place on the CPU; the others return their own."""
        part = part.detach().cpu().contiguous()
        if not self._ranks.is_first:
            dist.send(part, dst=0)
            return part
        total = self._rows[name].total
        full = part.new_empty(total, *part.shape[1:])
        bounds = pairwise([*(firsts[name] for firsts in self._firsts), total])
        for rank, (first, last) in enumerate(bounds):
            if rank == 0:
                full[first:last] = part
            else:
                dist.recv(full[first:last], src=rank)
        return full

    def _slice_rows(self, full: Tensor, name: str) -> Tensor:
        first = self._rows[name].first
        return full[first : first + len(self._loss.get_parameter(name))].clone()


def _has_rows(value: object, rows: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) == rows


def gradient_norm(parameters: list[nn.Parameter]) -> Tensor:
    """Compute the L2 norm of all gradients as one vector; rows of one index in a sparse gradient are summed first."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    # Coalesced values stand for a sparse gradient, since torch 2.11 takes no norm of a sparse tensor.
    return get_total_norm([g.coalesce().values() if g.is_sparse else g for g in gradients])

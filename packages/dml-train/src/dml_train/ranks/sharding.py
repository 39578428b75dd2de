"""Parameters of the loss that are spread over the ranks: whole in a checkpoint, in rows everywhere else.

A checkpoint holds what one process would have saved, so that it goes on with any number of ranks.
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
    """The parameters of which each rank has some rows, as the loss's modules say, with their optimizer's state.

    With one rank there are none.

    Args:
        loss: what has them.
        optimizer: what moves them; any of its tensors with as many rows as its parameter is spread with it.
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
        """Whether there are any."""
        return bool(self._rows)

    def shared(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Those that every rank has whole."""
        return [parameter for parameter in parameters if id(parameter) not in self._names]

    def scaler(self, device: torch.device, *, enabled: bool) -> torch.amp.GradScaler:
        """A loss scaler by which all ranks skip a step if one of them finds it not finite."""
        if self:
            # Imported here, since it takes seconds that few runs need to wait.
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

            return ShardedGradScaler(device.type, enabled=enabled, process_group=None)
        return torch.amp.GradScaler(device.type, enabled=enabled)

    def clip(self, parameters: list[nn.Parameter], limit: float) -> Tensor:
        """Scale all gradients down to this norm, taken over all rows of all ranks; the norm that they had."""
        norm = gradient_norm(self.shared(parameters))
        if self:
            own = [parameter for parameter in parameters if id(parameter) in self._names]
            squared = gradient_norm(own).square()
            dist.all_reduce(squared)
            norm = (norm.square() + squared).sqrt()
        clip_grads_with_norm_(parameters, limit, norm)
        return norm

    def whole(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The state of the loss and of the optimizer, whole on the first rank alone. Every rank must call it."""
        loss, optimizer = self._loss.state_dict(), self._optimizer.state_dict()
        loss = {
            name: self._joined(value, name) if name in self._rows else value for name, value in loss.items()
        }
        for index, name in self._indices().items():
            rows = len(self._loss.get_parameter(name))
            if index in optimizer["state"]:
                optimizer["state"][index] = {
                    key: self._joined(value, name) if _has_rows(value, rows) else value
                    for key, value in optimizer["state"][index].items()
                }
        return loss, optimizer

    def take(self, loss: dict[str, Any], optimizer: dict[str, Any]) -> None:
        """Take up what `whole` gave: this rank's rows of it, on its own number of ranks.

        The optimizer's numbers (momentum, betas, …) stay those that it was made with.

        Raises:
            ValueError: if the state is that of another kind of optimizer.
        """
        groups = self._optimizer.state_dict()["param_groups"]
        if [group.keys() for group in groups] != [group.keys() for group in optimizer["param_groups"]]:
            raise ValueError("the saved state is that of another kind of optimizer")
        for name in self._rows:
            loss[name] = self._own(loss[name], name)
        names = self._indices()
        for index, state in optimizer["state"].items():
            for key, value in state.items():
                if index in names and _has_rows(value, self._rows[names[index]].total):
                    state[key] = self._own(value, names[index])
                elif self and isinstance(value, Tensor):
                    # Out of the checkpoint's file, which may go while the run lasts.
                    state[key] = value.clone()
        self._loss.load_state_dict(loss)
        self._optimizer.load_state_dict({**optimizer, "param_groups": groups})

    def _indices(self) -> dict[int, str]:
        """The parameters' places in the optimizer's state, by which torch knows them."""
        order = (parameter for group in self._optimizer.param_groups for parameter in group["params"])
        return {
            index: self._names[id(parameter)]
            for index, parameter in enumerate(order)
            if id(parameter) in self._names
        }

    def _joined(self, part: Tensor, name: str) -> Tensor:
        """All ranks' rows on the first rank, in the CPU's memory, received in place; elsewhere the rank's own."""
        part = part.detach().cpu().contiguous()
        if not self._ranks.is_first:
            dist.send(part, dst=0)
            return part
        total = self._rows[name].total
        whole = part.new_empty(total, *part.shape[1:])
        bounds = pairwise([*(firsts[name] for firsts in self._firsts), total])
        for rank, (first, last) in enumerate(bounds):
            if rank == 0:
                whole[first:last] = part
            else:
                dist.recv(whole[first:last], src=rank)
        return whole

    def _own(self, whole: Tensor, name: str) -> Tensor:
        first = self._rows[name].first
        return whole[first : first + len(self._loss.get_parameter(name))].clone()


def _has_rows(value: object, rows: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) == rows


def gradient_norm(parameters: list[nn.Parameter]) -> Tensor:
    """The length of all gradients as one vector; a row that a sparse gradient names twice counts as its sum."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    # Of a sparse gradient by its values, since torch 2.11 takes no norm of a sparse tensor.
    return get_total_norm([g.coalesce().values() if g.is_sparse else g for g in gradients])

"""The optimizer, with separate learning rates for the backbone, the head and the loss's weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from dml_core import DmlError, InvalidOption, SparseLoss
from dml_train.recipe.tables import Optimizer

PARTS = ("backbone", "head", "loss")


class PartedOptimizer:
    """A torch optimizer with a learning rate per part, which schedules may set.

    The learning rate of a part is ``lr`` times the part's multiplier. Parameters with fewer than 2
    dimensions (biases, the scales of norms) aren't decayed.

    If a parameter of the loss receives a sparse gradient (`dml_core.SparseLoss`), only the
    gradient's rows are updated: using `torch.optim.SparseAdam` for ``adamw`` and ``adam``, so
    moments also change only in these rows; for ``sgd``, momentum isn't used. Weight decay isn't
    used for these parameters either, since it would change all rows.

    Frozen parameters aren't part of the optimizer, so checkpoints don't store moments for them.
    Raises an `InvalidOption` if all parameters are frozen.

    Args:
        table: AdamW (Loshchilov & Hutter 2019), Adam with the decay in the gradient (Kingma & Ba
            2015), or SGD with momentum, and the hyper-parameters.
        modules: the parts ``backbone``, ``head`` and ``loss`` by name; a part need not have
            parameters.
        frozen: parameters that never train.
        scales: further factors of the learning rate, by a parameter's id (`layer_scales`);
            default: 1.

    Attributes:
        lr, weight_decay, lr_multipliers: can be set anytime; used in the next step.
        torch: the optimizer that `write_groups` prepares for the next step.
    """

    def __init__(
        self,
        table: Optimizer,
        modules: dict[str, nn.Module],
        frozen: Collection[nn.Parameter] = (),
        scales: Mapping[int, float] | None = None,
    ) -> None:
        self.lr, self.weight_decay = float(table.lr), float(table.weight_decay)
        self.lr_multipliers = SimpleNamespace(**table.lr_multipliers.model_dump())
        sparse = sparse_parameters(modules["loss"])
        self._sparse = {id(parameter) for parameter in sparse}
        groups = _group(
            modules, self._sparse | {id(parameter) for parameter in frozen}, scales or {}
        )
        if not groups and not sparse:
            raise InvalidOption(
                "nothing trains: the backbone is frozen, and the head and the loss don't contain "
                "weights; expected training.trained_layers above 0, or embedding.linear = true"
            )
        rows = [{"params": sparse, "part": "loss", "scale": 1.0, "decayed": False}]
        parts: list[torch.optim.Optimizer] = []
        if table.name != "sgd":
            algorithm = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[table.name]
            if groups:
                parts.append(
                    algorithm(groups, lr=self.lr, betas=table.betas, eps=table.eps, fused=True)
                )
            if (
                sparse
            ):  # SparseAdam's constructor rejects a learning rate of 0, but a step accepts it
                parts.append(torch.optim.SparseAdam(rows, lr=1.0, betas=table.betas, eps=table.eps))
        else:
            if groups:
                momentum, nesterov = table.momentum, table.nesterov
                parts.append(
                    torch.optim.SGD(
                        groups, lr=self.lr, momentum=momentum, nesterov=nesterov, fused=True
                    )
                )
            if sparse:
                parts.append(torch.optim.SGD(rows, lr=self.lr))
        self.torch: torch.optim.Optimizer = Joined(parts) if sparse else parts[0]
        # torch's fused SGD leaves the momentum uninitialised when a loss scaler skips the first
        # step.
        for group in self.torch.param_groups:
            for parameter in group["params"] if group.get("momentum") else []:
                self.torch.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self.write_groups()

    def write_groups(self) -> None:
        """Copy the attributes to torch's parameter groups."""
        for group in self.torch.param_groups:
            group["lr"] = self.lr * getattr(self.lr_multipliers, group["part"]) * group["scale"]
            group["weight_decay"] = self.weight_decay if group["decayed"] else 0.0

    def check_gradients(self) -> None:
        """Raise a `DmlError` if a gradient is sparse but the loss didn't declare it, or dense but
        declared sparse.
        """
        for group in self.torch.param_groups:
            for parameter in group["params"]:
                declared = id(parameter) in self._sparse
                if parameter.grad is not None and parameter.grad.is_sparse != declared:
                    found = (
                        "dense, but the loss lists it in"
                        if declared
                        else "sparse, but the loss omits it in"
                    )
                    raise DmlError(
                        f"the gradient of a parameter {tuple(parameter.shape)} of the "
                        f"{group['part']} is {found} "
                        "sparse_parameters(), which selects the optimizer; correct that method of "
                        "the loss (dml_core.SparseLoss)"
                    )

    def parameters(self) -> list[nn.Parameter]:
        """List all parameters."""
        return [parameter for group in self.torch.param_groups for parameter in group["params"]]


def _group(
    modules: Mapping[str, nn.Module], absent: Collection[int], scales: Mapping[int, float]
) -> list[dict[str, Any]]:
    """Group the parameters by part, factor of the learning rate, and whether they are decayed."""
    groups: dict[tuple[str, float, bool], list[nn.Parameter]] = {}
    for part in PARTS:
        parameters = [p for p in modules[part].parameters() if id(p) not in absent]
        factors = [scales.get(id(p), 1.0) for p in parameters]
        groups |= {(part, factor, decayed): [] for factor in factors for decayed in (True, False)}
        for parameter, factor in zip(parameters, factors, strict=True):
            groups[part, factor, parameter.ndim >= 2].append(parameter)
    return [
        {"params": chosen, "part": part, "scale": scale, "decayed": decayed}
        for (part, scale, decayed), chosen in groups.items()
        if chosen
    ]


class Joined(torch.optim.Optimizer):
    """Optimizers of different parameters, used by scaler and checkpoint as a single optimizer with
    all groups.
    """

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        self._parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step all parts."""
        value = None if closure is None else closure()
        for part in self._parts:
            part.step()
        return value

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state that `state_dict` returned."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Share this optimizer's groups and state with the parts; torch replaces both when it loads
        state.
        """
        first = 0
        for part in self._parts:
            last = first + len(part.param_groups)
            part.param_groups, part.state = self.param_groups[first:last], self.state
            first = last


def sparse_parameters(loss: nn.Module) -> list[nn.Parameter]:
    """List the parameters that the modules of a loss declare to have a sparse gradient."""
    return [
        module.get_parameter(name)
        for module in loss.modules()
        if isinstance(module, SparseLoss)
        for name in module.sparse_parameters()
    ]

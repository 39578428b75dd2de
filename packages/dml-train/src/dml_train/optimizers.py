"""The optimizer, with a learning rate of its own for the backbone, the head and the loss's weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dml_core import DmlError
from dml_train.recipe import Optimizer

PARTS = ("backbone", "head", "loss")


class PartedOptimizer:
    """A torch optimizer whose numbers can be moved by a schedule while it runs.

    The learning rate of a part is ``lr`` times the part's multiplier. Parameters of fewer than two dimensions
    (biases, the scales of norms) aren't decayed.

    Args:
        table: AdamW (Loshchilov & Hutter 2019) or SGD with momentum, and their numbers.
        modules: by name, the three parts ``backbone``, ``head`` and ``loss``; any may be without parameters.

    Attributes:
        lr, weight_decay, backbone, head, loss: may be set at any time; the next step is taken with them.
    """

    def __init__(self, table: Optimizer, modules: dict[str, nn.Module]) -> None:
        self.lr, self.weight_decay = float(table.lr), float(table.weight_decay)
        self.backbone, self.head, self.loss = float(table.backbone), float(table.head), float(table.loss)
        groups: list[dict[str, Any]] = []
        for part in PARTS:
            parameters = list(modules[part].parameters())
            for decayed in (True, False):
                if chosen := [p for p in parameters if (p.ndim >= 2) == decayed]:
                    groups.append({"params": chosen, "part": part, "decayed": decayed})
        self.torch: torch.optim.Optimizer
        if table.name == "adamw":
            self.torch = torch.optim.AdamW(groups, lr=self.lr, betas=table.betas, eps=table.eps, fused=True)
        else:
            self.torch = torch.optim.SGD(
                groups, lr=self.lr, momentum=table.momentum, nesterov=table.nesterov, fused=True
            )

    def write_groups(self) -> None:
        """Carry the attributes over into torch's parameter groups."""
        for group in self.torch.param_groups:
            group["lr"] = self.lr * getattr(self, group["part"])
            group["weight_decay"] = self.weight_decay if group["decayed"] else 0.0

    def check_gradients(self) -> None:
        """Refuse gradients that these optimizers can't apply, before anything is moved.

        Raises:
            DmlError: if a gradient is sparse, as that of class weights of which a step takes a fraction.
        """
        for group in self.torch.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    raise DmlError(
                        f"the gradient of a parameter {tuple(parameter.shape)} of the {group['part']} is sparse, which "
                        f"{type(self.torch).__name__} here can't apply; with norm-softmax, set class_fraction = 1.0"
                    )

    def parameters(self) -> list[nn.Parameter]:
        """All that it moves."""
        return [parameter for group in self.torch.param_groups for parameter in group["params"]]

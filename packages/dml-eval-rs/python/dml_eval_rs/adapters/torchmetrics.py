"""A `torchmetrics.Metric` to measure retrieval over all batches, on any number of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torchmetrics
from torchmetrics.utilities import dim_zero_cat

from dml_eval_rs.matches.labels import Labels
from dml_eval_rs.retrieval import Options, check_options, evaluate

STATES = ("embeddings", "labels", "groups", "indices")


class RetrievalMetric(torchmetrics.Metric):
    """A metric that collects embeddings and labels, and uses `evaluate` to measure how well items
    find each other.

    `compute` gathers the items from all ranks, so all ranks get the values of a single process with
    all items. Ties are broken by the order of ranks and batches, or by `indices` if given.

    Args:
        options: options of `dml_eval_rs.evaluate`, like
            ``{"metrics": ("recall@1", "map@r"), "similarity": "dot"}``.
        kwargs: options of `torchmetrics.Metric`; use ``compute_on_cpu=True`` to move the items off
            an accelerator.

    Raises:
        TypeError, ValueError: as `evaluate`, if options are wrong.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    embeddings: list[torch.Tensor]

    def __init__(self, options: Options | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._options = options or {}
        check_options(**self._options)  # check now, not when an epoch ends
        for name in STATES:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        groups: torch.Tensor | None = None,
        indices: torch.Tensor | None = None,
    ) -> None:
        """Add a batch of items.

        Args:
            embeddings: (B, D) of any floating dtype; uint8 codes if ``similarity="hamming"``.
            labels: (B,) integers.
            groups: (B,) integers, see `Labels`; must be given for all batches or none.
            indices: (B,) the items' indices in the data set; must be given for all batches or none.
                Used to sort items, and to drop repeated items, because a distributed sampler
                repeats items to fill the last batch.

        Raises:
            TypeError: if labels, groups or indices are not integers.
            ValueError: if shapes do not match, or only some batches have groups or indices.
        """
        shape = tuple(embeddings.shape)
        if len(shape) != 2:
            raise ValueError(f"embeddings has shape {shape}; expected (batch, dim)")
        given = {"labels": labels, "groups": groups, "indices": indices}
        for name, tensor in given.items():
            if len(self.embeddings) and (tensor is None) == bool(len(getattr(self, name))):
                raise ValueError(
                    f"{name} is given for some batches only; expected all batches or none"
                )
            if tensor is not None and tensor.shape != shape[:1]:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}; expected {shape[:1]} to match "
                    f"embeddings {shape}"
                )
            if tensor is not None and (tensor.is_floating_point() or tensor.is_complex()):
                raise TypeError(
                    f"{name} has dtype {tensor.dtype}; expected integers: use {name}.long()"
                )
        for name, tensor in {"embeddings": embeddings, **given}.items():
            if tensor is not None:
                getattr(self, name).append(tensor.detach())

    def compute(self) -> dict[str, torch.Tensor]:
        """Measure all items, and return name → value as float64 tensors (float32 on MPS).

        Raises:
            ValueError: if items are not given, or none of the queries has a match.
        """
        if not len(self.embeddings):
            raise ValueError("there are no items; call update(embeddings, labels) before compute()")
        held = {name: dim_zero_cat(state) for name in STATES if len(state := getattr(self, name))}
        if "indices" in held:
            # Keep the first occurrence per index, sorted by index.
            _, first = np.unique(held.pop("indices").cpu().numpy(), return_index=True)
            held = {name: tensor[torch.from_numpy(first)] for name, tensor in held.items()}
        x = held["embeddings"]
        found = evaluate(x, Labels(held["labels"], held.get("groups")), **self._options)
        dtype = torch.float32 if x.device.type == "mps" else torch.float64
        return {
            name: torch.tensor(value, dtype=dtype, device=x.device) for name, value in found.items()
        }

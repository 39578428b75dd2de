"""A `torchmetrics.Metric` of retrieval: exact metrics of all batches, on any number of ranks."""

from __future__ import annotations

from typing import Any

import torch
import torchmetrics
from torchmetrics.utilities import dim_zero_cat

from dml_eval_rs.retrieval import evaluate


class RetrievalMetric(torchmetrics.Metric):
    """A metric that holds embeddings and labels, and measures them as their own gallery by `evaluate`.

    `compute` gathers the items of all ranks, so every rank has the value of one process with all items. Their order,
    which breaks ties, is that of the ranks, or of `indices`.

    Args:
        options: options of `dml_eval_rs.evaluate`, such as ``{"similarity": "dot", "recall_at": (1, 10)}``.
        kwargs: options of `torchmetrics.Metric`; ``compute_on_cpu=True`` moves the items off an accelerator.

    Raises:
        TypeError, ValueError: for options that `evaluate` refuses.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    embeddings: list[torch.Tensor]
    labels: list[torch.Tensor]
    groups: list[torch.Tensor]
    indices: list[torch.Tensor]

    def __init__(self, options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._options = dict(options or {})
        for name in ("embeddings", "labels", "gallery", "gallery_labels", "groups", "indices", "relevant"):
            if name in self._options:
                raise ValueError(f"options has {name!r}; expected options of evaluate other than its arrays")
        # Refuses a wrong option now, not after an epoch.
        evaluate(torch.eye(2), torch.zeros(2, dtype=torch.int64), **self._options)
        for name in ("embeddings", "labels", "groups", "indices"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        groups: torch.Tensor | None = None,
        indices: torch.Tensor | None = None,
    ) -> None:
        """Add a batch.

        Args:
            embeddings: (B, D) of any floating dtype.
            labels: (B,) integers.
            groups: (B,) integers, as in `evaluate`; for every batch or for none.
            indices: (B,) each item's index in the data set, for every batch or for none: items are then ordered by it,
                and repeated ones, with which a distributed sampler fills up the last batch, are dropped.

        Raises:
            ValueError: if shapes don't match, or groups or indices come for some batches only.
        """
        if embeddings.ndim != 2:
            raise ValueError(f"embeddings has shape {tuple(embeddings.shape)}; expected (batch, dim)")
        rows = len(embeddings)
        for name, given in (("labels", labels), ("groups", groups), ("indices", indices)):
            if given is not None and given.shape != (rows,):
                raise ValueError(
                    f"{name} has shape {tuple(given.shape)}; expected ({rows},) to match embeddings "
                    f"{tuple(embeddings.shape)}"
                )
            if given is not None and (given.is_floating_point() or given.is_complex()):
                raise TypeError(f"{name} has dtype {given.dtype}; expected integers: use {name}.long()")
        for name, given in (("groups", groups), ("indices", indices)):
            if len(self.embeddings) and (given is None) == bool(len(getattr(self, name))):
                raise ValueError(f"{name} came with some batches only; expected all, or none")
        self.embeddings.append(embeddings.detach())
        self.labels.append(labels.detach())
        if groups is not None:
            self.groups.append(groups.detach())
        if indices is not None:
            self.indices.append(indices.detach())

    def compute(self) -> dict[str, torch.Tensor]:
        """Measure all items.

        Returns:
            Name → mean, a float64 tensor, for each name of `Evaluation.per_query`, and ``"nmi"``, ``"ami"`` and
            ``"ari"`` where requested.

        Raises:
            ValueError: if there are no items, or no query has a match.
        """
        if not len(self.embeddings):
            raise ValueError("there are no items; expected update(embeddings, labels) before compute()")
        held = {
            name: dim_zero_cat(state)
            for name in ("embeddings", "labels", "groups")
            if len(state := getattr(self, name))
        }
        if len(self.indices):
            order = _first_of_each(dim_zero_cat(self.indices))
            held = {name: tensor[order] for name, tensor in held.items()}
        found = evaluate(held["embeddings"], held["labels"], groups=held.get("groups"), **self._options)
        agreement = {"nmi": found.nmi, "ami": found.ami, "ari": found.ari}
        values = {**found.means, **{name: value for name, value in agreement.items() if value is not None}}
        device = held["embeddings"].device
        dtype = torch.float32 if device.type == "mps" else torch.float64
        return {name: torch.tensor(value, dtype=dtype, device=device) for name, value in values.items()}


def _first_of_each(indices: torch.Tensor) -> torch.Tensor:
    """Return the place of each distinct index's first occurrence, by ascending index."""
    ordered, place = torch.sort(indices, stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return place[first]

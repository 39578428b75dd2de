"""A class loss whose class weights are spread over the ranks.

Shapes: `B` batch, `C` classes, `L` classes of this rank, `D` dim, `K` classes of a step's choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed
from torch.nn.functional import embedding

from dml_core import Rows
from dml_losses.arc_face import ArcFace
from dml_losses.arguments import check_batch, check_class_weights
from dml_losses.cos_face import CosFace
from dml_losses.curricular_face import CurricularFace
from dml_losses.functional.heated_up_softmax import batch_normalised
from dml_losses.functional.sharded_softmax import sharded_softmax, true_cosines
from dml_losses.functional.sphere import common_precision, unit_rows
from dml_losses.heated_up_softmax import HeatedUpSoftmax
from dml_losses.norm_softmax import NormSoftmax
from dml_losses.proxy_nca import ProxyNCA
from dml_losses.softmax import Softmax

SHARDABLE = (NormSoftmax, Softmax, CosFace, ArcFace, CurricularFace, HeatedUpSoftmax, ProxyNCA)


class ShardedClasses(torch.nn.Module):
    """A class loss of which each rank keeps, and updates, the weights of some classes.

    L = the wrapped loss; its softmax runs over the classes of all ranks

    Rank r of W has the classes from ⌊rC/W⌋ up to ⌊(r+1)C/W⌋. It computes their logits alone, so that time and memory
    of the loss, and of its optimizer's state, are 1/W of what they were; no rank ever has all logits. The softmax's
    maximum and sum are reduced over the ranks, and the embeddings' gradient (see
    `dml_losses.functional.sharded_softmax`).

    As with any loss here, every rank comes with the global batch: in `dml train` that is so, elsewhere
    ``GlobalBatch(ShardedClasses(loss))`` sees to it. Value and gradients are then those of the wrapped loss in one
    process, to rounding, and so is a `class_fraction`: all ranks draw the same classes, and each takes those
    that it has. Nothing of `class_weights` may be exchanged between ranks: keep the loss outside
    DistributedDataParallel, and give each rank's optimizer its own rows.

    Source: An et al. 2021, Partial FC, section 3.1.

    Args:
        loss: one of `SHARDABLE`. It is made whole on every rank, so that its weights don't depend on the number of
            ranks, and changed: it keeps this rank's rows. Make the process group first.

    Attributes:
        loss: what was given; its ``class_weights`` are (L, D) now.
        num_classes: C.

    Raises:
        TypeError: for another loss.
        ValueError: if there are fewer classes than ranks.
    """

    def __init__(self, loss: torch.nn.Module) -> None:
        super().__init__()
        if type(loss) not in SHARDABLE:
            raise TypeError(
                f"loss is {type(loss).__name__}, whose class weights can't be spread over ranks; expected one of: "
                + ", ".join(kind.__name__ for kind in SHARDABLE)
            )
        weights = loss.class_weights
        assert isinstance(weights, torch.Tensor)
        self.num_classes = len(weights)
        self._place = _place()
        rank, world_size = self._place
        if self.num_classes < world_size:
            raise ValueError(
                f"there are {self.num_classes} classes for {world_size} ranks; expected at least a class for each"
            )
        self._first = rank * self.num_classes // world_size
        own = slice(self._first, (rank + 1) * self.num_classes // world_size)
        loss.class_weights = torch.nn.Parameter(weights.detach()[own].clone())
        self.loss = loss

    def sharded_parameters(self) -> Mapping[str, Rows]:
        """Which rows of which parameter this rank has; see `dml_core.components.ShardedLoss`."""
        return {"loss.class_weights": Rows(self._first, self.num_classes)}

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The scalar loss of the global batch (B, D) with labels (B,) in [0, C), the same on every rank.

        Raises:
            RuntimeError: if ranks have joined or left since the loss was made.
        """
        if (place := _place()) != self._place:
            raise RuntimeError(
                f"this is rank {place[0]} of {place[1]}, but was rank {self._place[0]} of {self._place[1]} when the "
                "class weights were shared out; make the process group before the loss"
            )
        weights: torch.Tensor = self.loss.class_weights  # type: ignore[assignment]
        check_batch(embeddings, labels)
        # As many rows as there are classes, of which one is real: only their number is looked at.
        check_class_weights(embeddings, labels, weights[:1].expand(self.num_classes, -1))
        first = self._first
        if isinstance(self.loss, NormSoftmax) and (
            self.loss.sparse_parameters() or self.loss.class_fraction < 1
        ):
            weights, labels, first = self._choose(self.loss, weights, labels)
        features_BD, weights_LD = common_precision(embeddings, weights)
        return self._softmax(features_BD, labels, weights_LD, first)

    def extra_repr(self) -> str:
        """Which classes this rank has."""
        last = self._first + len(self.loss.class_weights)  # type: ignore[arg-type]
        return f"classes {self._first} to {last} of {self.num_classes}, rank {self._place[0]} of {self._place[1]}"

    def _choose(
        self, loss: NormSoftmax, weights: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """This rank's weights of the step's classes, the labels among those classes, and the place of the first."""
        subset_K, labels = loss.choose(labels, self.num_classes)
        ends = torch.tensor([self._first, self._first + len(weights)], device=subset_K.device)
        start, stop = torch.searchsorted(subset_K, ends).tolist()
        chosen: Any = embedding(
            subset_K[start:stop] - self._first, weights, sparse=bool(loss.sparse_parameters())
        )
        return chosen, labels, start

    def _softmax(
        self, features: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, first: int
    ) -> torch.Tensor:
        """The wrapped loss's own way to its softmax."""
        if isinstance(self.loss, HeatedUpSoftmax) and self.loss.feature_norm == "batch":
            if self.training:
                self.loss.track(features)
            unit = batch_normalised(features)[0]
        else:
            unit = unit_rows(features)
        match self.loss:
            case Softmax():
                return sharded_softmax(features, labels, weights, first, 1.0, normalised=False)
            case NormSoftmax(temperature=temperature):
                return sharded_softmax(unit, labels, weights, first, 1 / temperature)
            case HeatedUpSoftmax(alpha=alpha):
                return sharded_softmax(unit, labels, weights, first, alpha)
            case CosFace(scale=scale, margin=margin):
                return sharded_softmax(unit, labels, weights, first, scale, cosine_margin=margin)
            case ArcFace(scale=scale, margin=margin):
                return sharded_softmax(unit, labels, weights, first, scale, angular_margin=margin)
            case CurricularFace(scale=scale, margin=margin):
                if self.training:
                    self.loss.track(true_cosines(unit, labels.long(), weights, first).mean())
                progress = self.loss.progress
                return sharded_softmax(
                    unit, labels, weights, first, scale, angular_margin=margin, progress=progress
                )
            case ProxyNCA(scale=scale, positive_in_denominator=positive):
                return sharded_softmax(
                    unit, labels, weights, first, 2 * scale, positive_in_denominator=positive
                )
        raise AssertionError(type(self.loss))


def _place() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1

"""The class weights of a run's loss, wherever they are: in each level's loss, in a wrapped loss, sharded over ranks.

Shapes: `C` classes, `D` embedding dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor, nn

from dml_core import ShardedLoss
from dml_train.networks.model import LevelledLoss


class OwnClassWeights(NamedTuple):
    """Class weights of a loss, of which this rank has all rows or some, and their part of the embedding."""

    weights: Tensor  # the rows of this rank
    first: int  # the class of the first row
    num_classes: int  # C, of all ranks
    columns: slice  # of the embedding that they are compared with

    @property
    def classes(self) -> slice:
        """The classes of this rank's rows."""
        return slice(self.first, self.first + len(self.weights))


def find_class_weights(loss: nn.Module) -> Iterator[OwnClassWeights]:
    """Find the parameters called ``class_weights`` of a loss and of the losses that it wraps."""
    if isinstance(loss, LevelledLoss):
        first = 0
        for level, dim in zip(loss.levels, loss.dims, strict=True):
            for own in find_class_weights(level):
                yield own._replace(columns=slice(first, first + dim))
            first += dim
        return
    sharded = {
        id(module.get_parameter(name)): rows
        for module in loss.modules()
        if isinstance(module, ShardedLoss)
        for name, rows in module.sharded_parameters().items()
    }
    for name, weights in loss.named_parameters():
        if name.rpartition(".")[2] == "class_weights":
            rows = sharded.get(id(weights))
            first, count = (rows.first, rows.total) if rows else (0, len(weights))
            yield OwnClassWeights(weights, first, count, slice(None))

"""Find the class weights of a run's loss: in the losses of levels, in a wrapped loss, or sharded
over ranks.

Shapes: `C` classes, `D` embedding dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor, nn

from dml_core import ShardedLoss
from dml_train.networks.model import LevelledLoss


class OwnClassWeights(NamedTuple):
    """This rank's rows of a loss's class weights, and the part of the embedding that they are
    compared with.
    """

    weights: Tensor  # this rank's rows
    first: int  # the class of the first row
    num_classes: int  # C, over all ranks
    columns: slice  # columns of the embedding

    @property
    def classes(self) -> slice:
        """The classes of this rank's rows."""
        return slice(self.first, self.first + len(self.weights))


def find_class_weights(loss: nn.Module) -> Iterator[OwnClassWeights]:
    """Find the parameters called ``class_weights`` in a loss and in wrapped losses."""
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

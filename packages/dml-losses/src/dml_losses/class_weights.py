"""Draw the initial class weights of a class loss, for all classes or for the classes of this rank.

Shapes: `C` classes, `K` weights (centres) per class, `D` dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from dml_core import ShardedLoss, draw_rows, is_class_loss, rank_and_world_size
from dml_losses.arguments import check_whole
from dml_losses.update_check import expect_updates

# Inside `keep_rank_rows`: the number of classes, C, of each draw, since a part of the weights
# doesn't show it.
_drawn_by_rank: ContextVar[list[int] | None] = ContextVar(
    "C of the draws of one rank's rows", default=None
)


def initial_class_weights(
    num_classes: int, embedding_dim: int, *, normal: bool = False, centers_per_class: int = 1
) -> torch.nn.Parameter:
    """Draw class weights, a parameter (C·K, D). If `ShardedClasses` makes the loss, keep only this
    rank's rows.

    Args:
        num_classes, embedding_dim: C and D, both at least 1.
        normal: draw from a normal distribution, so that directions are uniform. By default, draw
            from the uniform distribution in ±1/√D, like the weights of a linear layer.
        centers_per_class: K, at least 1; the rows of a class are consecutive.

    Raises:
        TypeError, ValueError: if a number isn't an integer, or is below 1.
    """
    classes, dim = (
        check_whole("num_classes", num_classes, 1),
        check_whole("embedding_dim", embedding_dim, 1),
    )
    rows = classes * check_whole("centers_per_class", centers_per_class, 1)
    drawn, keep = _drawn_by_rank.get(), slice(None)
    if drawn is not None:
        drawn.append(classes)
        keep = rows_of_rank(classes, centers_per_class)
    deviation, bound = (2 / rows) ** 0.5, dim**-0.5
    drawn_rows = draw_rows(
        (rows, dim),
        keep,
        lambda block: block.normal_(std=deviation) if normal else block.uniform_(-bound, bound),
    )
    return expect_updates("class_weights", torch.nn.Parameter(drawn_rows))


def take_class_weights(loss: torch.nn.Module, wrapper: str) -> torch.nn.Parameter:
    """Move the class weights from a loss to a wrapper, which passes a part of them to the loss at
    each call.

    The loss keeps a tensor of the same shape without memory, since a copy of the weights would
    never be updated.

    Raises:
        TypeError: if the loss has no class weights, wraps the loss that has them, or has only this
            rank's weights.
    """
    name = type(loss).__name__
    if any(isinstance(module, ShardedLoss) for module in loss.modules()):
        raise TypeError(
            f"loss is {name}, which keeps some of the classes per rank; expected the loss inside "
            f"it: put ShardedClasses around {wrapper}"
        )
    if not is_class_loss(loss):
        raise TypeError(
            f"loss is {name}, which has no class_weights; expected a class loss such as ArcFace"
        )
    weights = dict(loss.named_parameters(recurse=False)).get("class_weights")
    if weights is None:
        raise TypeError(
            f"loss is {name}, which wraps another loss; expected a loss that has class weights "
            f"itself: put {name} around {wrapper}"
        )
    del loss.class_weights
    loss.class_weights = torch.empty(weights.shape, device="meta")
    return weights


def rows_of_rank(num_classes: int, centers_per_class: int) -> slice:
    """Return this rank's rows of class weights, for the classes in [⌊rC/W⌋, ⌊(r+1)C/W⌋)."""
    rank, world_size = rank_and_world_size()
    first, last = (number * num_classes // world_size for number in (rank, rank + 1))
    return slice(first * centers_per_class, last * centers_per_class)


@contextmanager
def keep_rank_rows() -> Iterator[list[int]]:
    """Make `initial_class_weights` keep only this rank's rows in this context; yield a list of the
    C of each draw.
    """
    drawn: list[int] = []
    token = _drawn_by_rank.set(drawn)
    try:
        yield drawn
    finally:
        _drawn_by_rank.reset(token)

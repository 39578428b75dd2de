"""The initial class weights of a class loss: all of them, or those of one rank.

Shapes: `C` classes, `K` weights (centres) of a class, `D` dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from dml_core import ShardedLoss, draw_rows, is_class_loss, rank_and_world_size
from dml_losses.arguments import check_whole
from dml_losses.update_check import expect_updates

# While `only_own_rows` is open: C of each draw, which the weights alone no longer show.
_drawn_by_rank: ContextVar[list[int] | None] = ContextVar("C of the draws of one rank's rows", default=None)


def initial_class_weights(
    num_classes: int, embedding_dim: int, *, normal: bool = False, centers_per_class: int = 1
) -> torch.nn.Parameter:
    """Draw class weights, a parameter (C·K, D); under `ShardedClasses`, which makes the loss, this rank's rows of it.

    Args:
        num_classes, embedding_dim: C and D, each at least 1.
        normal: draw from a normal distribution, so that directions are uniform; otherwise from the uniform
            distribution in ±1/√D, as a linear layer's weights.
        centers_per_class: K, at least 1; the rows of a class are consecutive.

    Raises:
        TypeError, ValueError: unless all three are whole numbers of at least 1.
    """
    classes, dim = check_whole("num_classes", num_classes, 1), check_whole("embedding_dim", embedding_dim, 1)
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
    """Move the class weights of a loss to its wrapper, which gives the loss a part of them at each call.

    The loss keeps a tensor of their shape, without memory: no copy may hold weights that no step updates.

    Raises:
        TypeError: if the loss has no class weights, keeps them in a loss that it wraps, or has those of one rank.
    """
    name = type(loss).__name__
    if any(isinstance(module, ShardedLoss) for module in loss.modules()):
        raise TypeError(
            f"loss is {name}, which has some of the classes on each rank; expected the loss itself: "
            f"put the sharding around {wrapper}"
        )
    if not is_class_loss(loss):
        raise TypeError(f"loss is {name}, which has no class_weights; expected a class loss such as ArcFace")
    weights = dict(loss.named_parameters(recurse=False)).get("class_weights")
    if weights is None:
        raise TypeError(
            f"loss is {name}, which wraps another; expected a loss that holds its class weights itself: "
            f"put the wrapper around {wrapper}"
        )
    del loss.class_weights
    loss.class_weights = torch.empty(weights.shape, device="meta")
    return weights


def rows_of_rank(num_classes: int, centers_per_class: int) -> slice:
    """Return this rank's rows of class weights: those of the classes in [⌊rC/W⌋, ⌊(r+1)C/W⌋)."""
    rank, world_size = rank_and_world_size()
    first, last = (number * num_classes // world_size for number in (rank, rank + 1))
    return slice(first * centers_per_class, last * centers_per_class)


@contextmanager
def only_own_rows() -> Iterator[list[int]]:
    """Let `initial_class_weights` keep this rank's rows only; the list receives the C of each draw."""
    drawn: list[int] = []
    token = _drawn_by_rank.set(drawn)
    try:
        yield drawn
    finally:
        _drawn_by_rank.reset(token)

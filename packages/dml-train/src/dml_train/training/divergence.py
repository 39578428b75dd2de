"""Divergence: a run will end when a loss, a weight or a moment of the optimizer is not finite."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor

from dml_core import DmlError
from dml_train.ranks.parts import OwnRows
from dml_train.ranks.sharding import is_placeholder

_ADVICE = (
    "Try a lower optimizer.lr, a warmup in the schedule, training.gradient_clip = 1.0, "
    "or training.precision = 'float32'"
)


def divergence(what: str, newest_checkpoint: str, more: str = "") -> DmlError:
    """Compose the error that ends a diverged run: values that aren't finite, the checkpoint to
    resume from, and advice.

    Use `more` for a further sentence, for example to name the items of the batch.
    """
    return DmlError(f"{what}; {newest_checkpoint}. {_ADVICE}{more and '. ' + more}")


def find_nonfinite(
    weights: Mapping[str, Tensor],
    state: Mapping[str, object],
    rows: Mapping[str, OwnRows],
    untrained: Collection[str],
    *,
    shared: bool = True,
) -> str | None:
    """Return the name of the first tensor of network, loss or optimizer that isn't finite; None if
    all are finite.

    Use this before saving: a step can diverge although the loss was finite, and then the checkpoint
    is useless.

    Args:
        weights: weights of backbone and head, as saved in a checkpoint.
        state: the remaining state of a checkpoint.
        rows: this rank's rows of the tensors that are placeholders in `state`.
        untrained: names, in `weights` and in ``state["loss"]``, of tensors that don't change. They
            may be infinite on purpose, for example in a mask, so only NaN is an error there.
        shared: whether to check `weights` and `state`, which are identical on all ranks.
    """
    # With a moving average, `weights` is the average, and the state contains the weights that
    # train.
    parts = {
        "the network's": {**weights},
        "the trained": state.get("model"),
        "the loss's": state.get("loss"),
    }
    parts["the optimizer's"] = state.get("optimizer")
    found = [(part, *named) for part, tree in parts.items() if shared for named in _tensors(tree)]
    found += [
        (f"the {path.partition('/')[0]}'s", path.rpartition("/")[2], own.values)
        for path, own in rows.items()
    ]
    for part, name, tensor in found:
        may_be_infinite = part != "the optimizer's" and name in untrained
        if not (~tensor.isnan() if may_be_infinite else tensor.isfinite()).all():
            return f"{part} {name}"
    return None


def untrained_names(*modules: torch.nn.Module) -> set[str]:
    """Collect the names of the buffers and frozen parameters, which the optimizer doesn't
    change.
    """
    return {
        name
        for module in modules
        for name, tensor in (*module.named_buffers(), *module.named_parameters())
        if not tensor.requires_grad
    }


def _tensors(tree: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield tensors in nested dicts with keys, except placeholders."""
    if isinstance(tree, Tensor):
        if not is_placeholder(tree):
            yield name, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _tensors(value, str(key))

"""Train with batches that are too large for memory: compute the gradient in micro-batches.

Shapes: `B` batch, `D` embedding dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Forward: TypeAlias = Callable[[nn.Module, Tensor, int], Tensor]


class GradientCache:
    """A two-pass embedding of a batch that keeps only the activations of a micro-batch in memory.

    The first pass embeds the batch and does not save activations. The loss computes the gradient of
    the embeddings. The second pass embeds the micro-batches again with activations, and
    back-propagates this gradient:

    ∂L/∂θ = Σ_b (∂L/∂x_b)·(∂x_b/∂θ),  ∂L/∂x_b from the loss of the whole batch

    Use this class if a loss needs large batches: the weights receive the gradient of the full
    batch, for the price of a second forward pass. Random numbers (dropout) and autocast are
    identical in both passes. Note that batch norms see only a micro-batch, and that only the second
    pass updates the running statistics. A batch that fits in a single micro-batch will be embedded
    once, except under DistributedDataParallel.

    Source: Gao et al. 2021, Scaling Deep Contrastive Learning Batch Size under Memory Limited
    Setup, section 3.2.

    Args:
        network: maps inputs (B, …) to embeddings (B, D); rows should be independent except in batch
            norms. If the network is wrapped in DistributedDataParallel, ranks exchange gradients
            once, with the last micro-batch.
        micro_batch: the largest number of rows in a micro-batch, at least 1. The batch is split
            into as few micro-batches as possible, of nearly equal size.
        first_network: the network for the first pass. Default: `network`, unwrapped from
            DistributedDataParallel.
        forward: called as ``forward(network, inputs, index)`` for all micro-batches in both passes.
            By default, calls the network. A custom function must draw the same random numbers in
            both passes, and choose the precision.
        without_exchange: makes a context that stops ranks from exchanging gradients. By default,
            DDP's `no_sync`.

    Raises:
        TypeError: if `micro_batch` isn't an integer.
        ValueError: if `micro_batch` is below 1.
    """

    def __init__(
        self,
        network: nn.Module,
        micro_batch: int,
        *,
        first_network: nn.Module | None = None,
        forward: Forward | None = None,
        without_exchange: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        if isinstance(micro_batch, bool) or not isinstance(micro_batch, int):
            raise TypeError(f"micro_batch is {micro_batch!r}; expected an integer of at least 1")
        if micro_batch < 1:
            raise ValueError(f"micro_batch is {micro_batch}; expected at least 1")
        inner, exchanging = network, without_exchange or nullcontext
        if isinstance(network, nn.parallel.DistributedDataParallel):
            inner, exchanging = network.module, without_exchange or network.no_sync
        self._network, self._micro_batch = network, micro_batch
        self._first: nn.Module = inner if first_network is None else first_network
        self._forward = forward or _Replayed()
        self._without_exchange: Callable[[], AbstractContextManager[None]] = exchanging
        self._cached: tuple[Tensor, Tensor] | None = None  # inputs, their embeddings

    def embed(self, inputs: Tensor) -> Tensor:
        """Embed a batch as (B, D). Back-propagate the loss to the result, then call `backward`."""
        # Don't do this under DistributedDataParallel: a rank with few rows must join the other
        # ranks' collectives.
        if len(inputs) <= self._micro_batch and not isinstance(
            self._network, nn.parallel.DistributedDataParallel
        ):
            self._cached = None
            return self._forward(self._network, inputs, 0)
        with torch.no_grad(), _freeze_statistics(self._first):
            parts = split_evenly(inputs, self._micro_batch)
            rows = [self._forward(self._first, part, index) for index, part in enumerate(parts)]
        embeddings = torch.cat(rows).requires_grad_()
        self._cached = inputs, embeddings
        return embeddings

    def backward(self) -> None:
        """Back-propagate the embeddings' gradients to the weights. Call this after
        ``loss.backward()``.

        Raises:
            RuntimeError: if the embeddings do not have a gradient.
        """
        if self._cached is None:  # ``loss.backward()`` already went through the network
            return
        (inputs, embeddings), self._cached = self._cached, None
        if embeddings.grad is None:
            raise RuntimeError(
                "the embeddings have no gradient; call the loss's backward() first, and compute "
                "the loss from the result of embed()"
            )
        split = (split_evenly(rows, self._micro_batch) for rows in (inputs, embeddings.grad))
        parts = list(zip(*split, strict=True))
        with self._forward.second_pass() if isinstance(self._forward, _Replayed) else nullcontext():
            for index, (part, gradient) in enumerate(parts):
                with self._without_exchange() if index < len(parts) - 1 else nullcontext():
                    again = self._forward(self._network, part, index)
                    if again.requires_grad:  # false if the network is frozen
                        torch.autograd.backward(again, gradient)


def split_evenly(rows: Tensor, most: int) -> tuple[Tensor, ...]:
    """Split rows into the fewest parts of at most `most` rows, nearly equal, since batch norms fail
    on a single row.
    """
    return torch.tensor_split(rows, max(1, -(-len(rows) // most)))


def backward_in_micro_batches(
    network: nn.Module,
    inputs: Tensor,
    loss: Callable[[Tensor], Tensor],
    micro_batch: int,
    *,
    scaler: torch.amp.GradScaler | None = None,
) -> Tensor:
    """Compute a batch's loss, and back-propagate it to the weights in micro-batches; see
    `GradientCache`.

    Use this function instead of ``loss(network(inputs)).backward()`` in a custom training loop.
    Under ``torch.autocast``, network and loss use the autocast precision, but the backward passes
    run outside autocast.

    Args:
        network: maps inputs to embeddings; can be wrapped in DistributedDataParallel.
        inputs: (B, …).
        loss: maps embeddings (B, D) to the scalar loss, for example
            ``lambda x: criterion(x, labels)``. If there is more than one rank, the loss must gather
            the rows: use ``GlobalBatch(criterion)``.
        micro_batch: the largest number of rows with activations in memory.
        scaler: scales the loss before the backward pass; the caller must step and update it. By
            default, not used.

    Returns:
        The loss, detached and unscaled.

    Raises:
        TypeError, ValueError: see `GradientCache`.
    """
    cache = GradientCache(network, micro_batch)
    value = loss(cache.embed(inputs))
    with torch.autocast(inputs.device.type, enabled=False):
        (value if scaler is None else scaler.scale(value)).backward()  # type: ignore[no-untyped-call]
    cache.backward()
    return value.detach()


class _Replayed:
    """A forward function that uses the random numbers and the precision of the first pass in the
    second pass.
    """

    def __init__(self) -> None:
        self._states: list[tuple[Tensor, Tensor | None]] = []
        self._repeats = False
        self._precision: tuple[torch.dtype, bool] | None = None

    def __call__(self, network: nn.Module, inputs: Tensor, index: int) -> Tensor:
        kind = inputs.device.type
        if self._precision is None:
            self._precision = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        dtype, enabled = self._precision
        if self._repeats:
            _set_random_state(self._states[index], inputs.device)
        else:
            self._states.append(_random_state(inputs.device))
        self._device = inputs.device
        # Don't let autocast cache weights that it casts without gradients: the second pass needs
        # their gradients.
        cached = torch.is_grad_enabled() and torch.is_autocast_cache_enabled()
        with torch.autocast(kind, dtype, enabled, cache_enabled=cached):
            embeddings: Tensor = network(inputs)
        return embeddings

    @contextmanager
    def second_pass(self) -> Iterator[None]:
        """Make the calls in this context repeat the first pass, and finally restore the random
        generators.
        """
        before, self._repeats = _random_state(self._device), True
        try:
            yield
        finally:
            _set_random_state(before, self._device)


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    own = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
    return torch.get_rng_state(), own


def _set_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.get_device_module(device).set_rng_state(state[1], device)


@contextmanager
def _freeze_statistics(network: nn.Module) -> Iterator[None]:
    """Freeze batch norms' running statistics in this context, since only the second pass should
    update them.
    """
    norms: list[Any] = [
        m
        for m in network.modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training and m.track_running_stats
    ]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True

"""The network in training: replicated over ranks, compiled, and fed in micro-batches.

Shapes: `R` rows on this rank, `D` embedding dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dml_core import DmlError, GradientCache, split_evenly
from dml_train.ranks.ranks import Ranks
from dml_train.seeds import FORWARD, seed_torch
from dml_train.training.build import Experiment


class Replica:
    """The forward and backward pass of a training step.

    ``training.micro_batch`` limits the number of images with activations in memory
    (`dml_core.GradientCache`).
    """

    def __init__(self, experiment: Experiment, ranks: Ranks) -> None:
        self._experiment, self._ranks = experiment, ranks
        self._size = experiment.recipe.training.micro_batch
        self._compiles = experiment.recipe.training.compile
        self._replica: nn.Module = experiment.model
        self._without_exchange: Callable[[], AbstractContextManager[None]] = nullcontext
        self._replicated_for: list[bool] | None = None
        self._cache: GradientCache | None = None  # waits for the backward pass

    def embed(self, images_R: Tensor, step: int) -> Tensor:
        """Embed this rank's images, (R, D) float32; back-propagate the loss to the result, then
        `finish_backward`.
        """
        self._replicate()
        if self._size is None:
            return self._forward(self._replica, images_R, step, 0)
        # The cache's two passes must run the same code, since compiled code draws different dropout
        # masks than eager.
        self._cache = GradientCache(
            self._replica,
            self._size,
            first_network=self._replica if self._compiles else self._experiment.model,
            forward=lambda network, images, part: self._forward(network, images, step, part),
            without_exchange=self._without_exchange,
        )
        return self._cache.embed(images_R)

    def finish_backward(self) -> None:
        """Back-propagate from the embeddings to the weights, if the loss's backward pass stopped at
        the embeddings.

        After this call every rank holds the gradient of the global batch. The first rank's buffers
        are broadcast, since batch norms see different rows per rank, but all ranks must evaluate
        and average the model that is saved.
        """
        if self._cache is not None:
            self._cache.backward()
            self._cache = None
        if self._ranks.world_size > 1:
            self._ranks.sum_gradients(self._experiment.model.parameters())
            _share_buffers(self._experiment.model)

    @torch.no_grad()
    def adapt(self, images_R: Tensor, step: int) -> None:
        """Update batch-norm statistics by a forward pass in training mode; all ranks get the same
        statistics.
        """
        parts = (images_R,) if self._size is None else split_evenly(images_R, self._size)
        for k, part in enumerate(parts):
            self._forward(self._experiment.model, part, step, k)
        if self._ranks.world_size > 1:
            _share_buffers(self._experiment.model)

    def _forward(self, network: nn.Module, images: Tensor, step: int, part: int) -> Tensor:
        device, precision = self._experiment.device, self._experiment.precision
        # Both passes of a micro-batch draw equal dropout masks.
        seed_torch(
            device, self._experiment.recipe.training.seed, FORWARD, step, self._ranks.rank, part
        )
        with torch.autocast(device.type, precision, precision != torch.float32):
            embeddings: Tensor = (
                self._compiled(network, images) if self._compiles else network(images)
            )
        return embeddings

    def _compiled(self, network: nn.Module, images: Tensor) -> Tensor:
        # Import only when needed: this takes seconds, and few runs compile.
        from torch._dynamo.exc import TorchDynamoException

        try:
            embeddings: Tensor = network(images)
        except TorchDynamoException as error:
            raise DmlError(
                f"training.compile is true, but torch can't compile the network: {error}\n"
                "Install the missing compiler (on a CPU a C++ compiler: g++, or the compiler that "
                "CXX names), or omit training.compile"
            ) from error
        return embeddings

    def _replicate(self) -> None:
        """Wrap the model for training, and wrap it again when the set of trained weights
        changes.
        """
        trains = [parameter.requires_grad for parameter in self._experiment.model.parameters()]
        if trains != self._replicated_for:
            self._replicated_for = trains
            replica = self._ranks.replicate(self._experiment.model)
            self._without_exchange = nullcontext
            if isinstance(replica, DistributedDataParallel):
                self._without_exchange = replica.no_sync
            if self._compiles:
                # Compile the few sizes separately. With dynamic shapes, which torch uses from the
                # second size on, results would depend on earlier batches, and a resumed run would
                # end with different bits.
                replica = cast("nn.Module", torch.compile(replica, dynamic=False))
            self._replica = replica


@torch.no_grad()
def _share_buffers(model: nn.Module) -> None:
    """Broadcast the first rank's buffers of modules in training mode; other buffers don't
    change.
    """
    buffers = [
        b for module in model.modules() if module.training for b in module.buffers(recurse=False)
    ]
    for dtype in dict.fromkeys(buffer.dtype for buffer in buffers):
        alike = [buffer for buffer in buffers if buffer.dtype == dtype]
        joined = torch.cat([buffer.flatten() for buffer in alike])
        dist.broadcast(joined, src=0)
        parts = torch.split(joined, [buffer.numel() for buffer in alike])
        for buffer, values in zip(alike, parts, strict=True):
            buffer.copy_(values.view_as(buffer))

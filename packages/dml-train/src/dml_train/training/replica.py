"""The network in training: replicated over ranks, compiled, and fed in micro-batches.

Shapes: `R` rows of this rank, `D` embedding dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dml_core import DmlError
from dml_train.ranks.ranks import Ranks
from dml_train.seeds import FORWARD, seed_torch
from dml_train.training.build import Experiment


class Replica:
    """The forward and backward pass of a training step.

    With ``training.micro_batch`` the network holds the activations of only that many images at a time. A first pass
    embeds the batch without activations; the loss gives each embedding its gradient; a second pass repeats each
    micro-batch with activations and back-propagates that gradient. The weights receive the gradient of the full batch,
    at the memory of one micro-batch and the cost of a second forward pass. Batch norms see one micro-batch at a time.

    Source: Gao et al. 2021, Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, Sec. 3.2.
    """

    def __init__(self, experiment: Experiment, ranks: Ranks) -> None:
        self._experiment, self._ranks = experiment, ranks
        self._size = experiment.recipe.training.micro_batch
        self._compiles = experiment.recipe.training.compile
        self._replica: nn.Module = experiment.model
        self._without_exchange: Callable[[], AbstractContextManager[None]] = nullcontext
        self._replicated_for: list[bool] | None = None
        self._cached: tuple[Tensor, Tensor, int] | None = None  # images, their embeddings, the step

    def embed(self, images_R: Tensor, step: int) -> Tensor:
        """Embed this rank's images, (R, D) float32; the loss back-propagates to the result."""
        self._replicate()
        if self._size is None or len(images_R) <= self._size:
            return self._forward(self._replica, images_R, step, 0)
        # Compiled code draws other dropout masks than eager code: both passes must use the same.
        network = self._replica if self._compiles else self._experiment.model
        with torch.no_grad(), _statistics_kept(self._experiment.model):
            parts = [self._forward(network, part, step, k) for k, part in enumerate(self._parts(images_R))]
        embeddings_RD = torch.cat(parts).requires_grad_()
        self._cached = images_R, embeddings_RD, step
        return embeddings_RD

    def finish_backward(self) -> None:
        """Back-propagate the embeddings' gradients to the weights, if the loss's backward stopped at the embeddings.

        Afterwards every rank has the gradient of the global batch. The first rank's buffers are broadcast: batch norms
        have seen other rows on each rank, and all ranks must evaluate and average the model that is saved.
        """
        if self._cached is not None:
            (images_R, embeddings_RD, step), self._cached = self._cached, None
            assert embeddings_RD.grad is not None
            images, gradients = self._parts(images_R), self._parts(embeddings_RD.grad)
            for k, (part, gradient) in enumerate(zip(images, gradients, strict=True)):
                # Ranks exchange gradients once, with the last micro-batch.
                with self._without_exchange() if k < len(images) - 1 else nullcontext():
                    embeddings = self._forward(self._replica, part, step, k)
                    if embeddings.requires_grad:  # not if the network is frozen as a whole
                        torch.autograd.backward(embeddings, gradient)
        if self._ranks.world_size > 1:
            self._ranks.sum_gradients(self._experiment.model.parameters())
            _share_buffers(self._experiment.model)

    @torch.no_grad()
    def adapt(self, images_R: Tensor, step: int) -> None:
        """Update the statistics of batch norms by a forward pass in training mode, the same on every rank."""
        parts = (images_R,) if self._size is None else self._parts(images_R)
        for k, part in enumerate(parts):
            self._forward(self._experiment.model, part, step, k)
        if self._ranks.world_size > 1:
            _share_buffers(self._experiment.model)

    def _parts(self, rows_R: Tensor) -> tuple[Tensor, ...]:
        """Split rows into the fewest micro-batches, of nearly equal size: a batch norm fails on a single row."""
        assert self._size is not None
        return torch.tensor_split(rows_R, -(-len(rows_R) // self._size))

    def _forward(self, network: nn.Module, images: Tensor, step: int, part: int) -> Tensor:
        device, precision = self._experiment.device, self._experiment.precision
        # Both passes of a micro-batch draw the same dropout masks.
        seed_torch(device, self._experiment.recipe.training.seed, FORWARD, step, self._ranks.rank, part)
        with torch.autocast(device.type, precision, precision != torch.float32):
            embeddings: Tensor = self._compiled(network, images) if self._compiles else network(images)
        return embeddings

    def _compiled(self, network: nn.Module, images: Tensor) -> Tensor:
        # Imported here: it takes seconds, and few runs compile.
        from torch._dynamo.exc import TorchDynamoException

        try:
            embeddings: Tensor = network(images)
        except TorchDynamoException as error:
            raise DmlError(
                f"training.compile is true, but torch can't compile the network: {error}\n"
                "Install what is missing (on a CPU a C++ compiler: g++, or the one that CXX names), "
                "or omit training.compile"
            ) from error
        return embeddings

    def _replicate(self) -> None:
        """Wrap the model for training, again whenever the set of trained weights changes."""
        trains = [parameter.requires_grad for parameter in self._experiment.model.parameters()]
        if trains != self._replicated_for:
            self._replicated_for = trains
            replica = self._ranks.replicate(self._experiment.model)
            self._without_exchange = nullcontext
            if isinstance(replica, DistributedDataParallel):
                self._without_exchange = replica.no_sync
            if self._compiles:
                # Compile each of the few sizes by itself. Dynamic shapes would start with the second size, so that
                # results would depend on earlier batches and a resumed run would end with other bits.
                replica = cast("nn.Module", torch.compile(replica, dynamic=False))
            self._replica = replica


@torch.no_grad()
def _share_buffers(model: nn.Module) -> None:
    """Broadcast the first rank's buffers of modules in training mode; other buffers don't change."""
    buffers = [b for module in model.modules() if module.training for b in module.buffers(recurse=False)]
    for dtype in dict.fromkeys(buffer.dtype for buffer in buffers):
        alike = [buffer for buffer in buffers if buffer.dtype == dtype]
        joined = torch.cat([buffer.flatten() for buffer in alike])
        dist.broadcast(joined, src=0)
        parts = torch.split(joined, [buffer.numel() for buffer in alike])
        for buffer, values in zip(alike, parts, strict=True):
            buffer.copy_(values.view_as(buffer))


@contextmanager
def _statistics_kept(model: nn.Module) -> Iterator[None]:
    """Freeze the running statistics of batch norms: the second pass updates them."""
    norms = [
        m
        for m in model.modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training and m.track_running_stats
    ]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True

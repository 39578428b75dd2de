"""Cross-batch memory: a pair loss that also compares the batch with the embeddings of earlier
batches.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from dml_core import MemoryQueue, is_class_loss
from dml_losses.arguments import check_batch, check_whole, show
from dml_losses.functional.sphere import full_precision


class CrossBatchMemory(torch.nn.Module):
    """A pair loss within the batch, plus the same loss between the batch and a queue of past
    embeddings.

    L = l(X) + l(X, memory)

    Use it if a pair loss needs more negatives than fit in a batch.

    Source: Wang et al. 2020, Cross-Batch Memory for Embedding Learning, its pseudocode; the
    authors' code for the sum with the loss within the batch. Departure: the queue is read before
    the batch is added, so that an item isn't compared with its copy, which would be its easiest
    positive.

    Args:
        loss: any pair loss, called as ``loss(embeddings, labels, gallery, gallery_labels)``.
        capacity: the number of embeddings in the queue, at least 1.
        warmup_steps: the number of training steps before the first batch is queued; 1,000
            iterations in the paper.

    Attributes:
        queue: a `dml_core.MemoryQueue`, saved completely in the state dict. It is None until the
            first batch or a state dict determines the dimension, and the dtype: float64 for float64
            embeddings, else float32.

    Raises:
        TypeError: if the loss is a class loss or doesn't take a gallery, or if a count isn't an
            integer.
        ValueError: if the capacity is below 1, or the warm-up is below 0.
    """

    steps: torch.Tensor  # () int64: training steps seen

    def __init__(self, loss: torch.nn.Module, capacity: int, warmup_steps: int = 0) -> None:
        super().__init__()
        if is_class_loss(loss):
            raise TypeError(
                f"loss is {type(loss).__name__}, a class loss; expected a pair loss such as "
                "InstanceCrossEntropy (to use a memory with a class loss, see MemVir)"
            )
        try:
            inspect.signature(loss.forward).bind(
                *["embeddings", "labels", "gallery", "gallery_labels"]
            )
        except TypeError as error:
            raise TypeError(
                f"loss is {type(loss).__name__}, whose forward takes no gallery; expected "
                "forward(embeddings, labels, gallery=None, gallery_labels=None), to compare with "
                "the queue"
            ) from error
        self.loss = loss
        self.capacity = check_whole("capacity", capacity, 1)
        self.warmup_steps = check_whole("warmup_steps", warmup_steps, 0)
        self.queue: MemoryQueue | None = None
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self._steps = (
            0  # the same number on the host, which can be read without waiting for the device
        )

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        gallery: torch.Tensor | None = None,
        gallery_labels: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,); in training, queue the
        batch.

        If a gallery is given, it is passed to the wrapped loss, and the comparison with the queue
        is added.
        """
        check_batch(embeddings, labels)
        # Sum the gradients of both losses here, in float32: the sum of finite float16 numbers can
        # exceed the range.
        embeddings = full_precision(embeddings)
        value: torch.Tensor = self.loss(embeddings, labels, gallery, gallery_labels)
        if self.queue is not None and len(self.queue):
            past = self.queue.contents()
            value = value + self.loss(embeddings, labels, past.embeddings, past.labels)
        if self.training:
            if self._steps >= self.warmup_steps:
                queue = self.queue or self._make_queue(embeddings)
                queue.enqueue(embeddings, labels)
            self._steps += 1
            self.steps.fill_(self._steps)
        return value

    extra_repr = show("capacity", "warmup_steps")

    def _make_queue(self, like: torch.Tensor) -> MemoryQueue:
        dtype = torch.promote_types(like.dtype, torch.float32)
        # A buffer that is made in inference mode can't be written in training.
        with torch.inference_mode(False):
            self.queue = MemoryQueue(self.capacity, like.shape[1], dtype=dtype).to(like.device)
        return self.queue

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        saved = state_dict.get(f"{prefix}queue.embeddings")
        if saved is not None and self.queue is None:
            self._make_queue(saved.to(self.steps.device))
        super()._load_from_state_dict(state_dict, prefix, *others)
        self._steps = int(self.steps)

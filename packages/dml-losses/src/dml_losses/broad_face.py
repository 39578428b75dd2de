"""BroadFace: class weights that also learn from past embeddings."""

from __future__ import annotations

from typing import Any

import torch

from dml_core import MemoryQueue, centers_per_class_of, is_class_loss
from dml_losses.arguments import check_whole, show
from dml_losses.functional.sphere import full_precision, inverse_norms


class BroadFace(torch.nn.Module):
    """A class loss whose class weights also learn from a queue of past embeddings.

    L = l(X; W̄) + l(X̃* ∪ X̄; W),  x̃* = x̃ + ‖x̃‖/‖w̃_y‖·(w_y − w̃_y)

    where a bar marks constants, X̃ are the queued embeddings, and w̃ are the weights of their classes
    when they were queued, so that a queued embedding moves with its class. The embeddings only get
    a gradient from the batch's loss. Use it if most classes are missing from most batches.

    Source: Kim et al. 2020, BroadFace: Looking at Tens of Thousands of People at Once for Face
    Recognition; the authors' code for the sum of both. Departure: buffers have a fixed shape, so
    that new modules can load checkpoints.

    Args:
        loss: a class loss with one row of weights per class; ArcFace in the paper.
        capacity: the number of embeddings in the queue, at least 1; 32,000 in the paper.
        warmup_steps: the number of training steps before the first batch is queued.
        compensate: move queued embeddings with their classes, as above; if false, use them
            unchanged.

    Raises:
        TypeError: if the loss has no class weights, or a count isn't an integer.
        ValueError: if the capacity is below 1, the warm-up is below 0, or the loss has multiple
            weights per class.
    """

    steps: torch.Tensor  # () int64: training steps seen

    def __init__(
        self, loss: torch.nn.Module, capacity: int, warmup_steps: int = 0, compensate: bool = True
    ) -> None:
        super().__init__()
        if not is_class_loss(loss):
            raise TypeError(
                f"loss is {type(loss).__name__}, which has no class_weights; expected a class loss "
                "such as ArcFace (to use a memory with a pair loss, see CrossBatchMemory)"
            )
        if (centers := centers_per_class_of(loss)) != 1:
            raise ValueError(
                f"loss has {centers} weights for each class; expected 1, since embeddings move "
                "with this weight"
            )
        self.loss = loss
        self.warmup_steps = check_whole("warmup_steps", warmup_steps, 0)
        self.compensate = compensate
        dim = self.class_weights.shape[1]
        self.queue = MemoryQueue(
            check_whole("capacity", capacity, 1), dim, {"class_weight": torch.zeros(dim)}
        )
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self._steps = (
            0  # the same number on the host, which can be read without waiting for the device
        )

    @property
    def class_weights(self) -> torch.Tensor:
        """The class weights of the wrapped loss, (C, D)."""
        weights = self.loss.class_weights
        assert isinstance(weights, torch.Tensor)
        return weights

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C); in training,
        queue the batch.
        """
        weights = self.class_weights if class_weights is None else class_weights
        batch_loss: torch.Tensor = self.loss(embeddings, labels, weights.detach())
        past, past_labels, extras = self.queue.contents()
        if self.compensate and len(past):
            past = _move(past, extras["class_weight"], weights.detach()[past_labels])
        # Turn autocast off: its cat rejects half precision in a different dtype.
        with torch.autocast(embeddings.device.type, enabled=False):
            rows = torch.cat((past.to(embeddings.dtype), embeddings.detach()))
        value: torch.Tensor = batch_loss + self.loss(
            rows, torch.cat((past_labels, labels.long())), weights
        )
        if self.training:
            if self._steps >= self.warmup_steps:
                self.queue.enqueue(embeddings, labels, class_weight=weights[labels.long()])
            self._steps += 1
            self.steps.fill_(self._steps)
        return value

    extra_repr = show("warmup_steps", "compensate")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *others)
        self._steps = int(self.steps)


def _move(past: torch.Tensor, then: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    """Compute x̃ + ‖x̃‖/‖w̃‖·(w − w̃), (N, D) in float32 at least; x̃ if x̃ or w̃ has no direction (see
    `unit_rows`).
    """
    past, then, now = full_precision(past), full_precision(then), full_precision(now)
    norm_N = torch.linalg.vector_norm(past, dim=1)
    ratio_N = norm_N.where(norm_N < torch.inf, 0) * inverse_norms(then)
    moved: torch.Tensor = past + ratio_N[:, None] * (now - then)
    return moved

"""MemVir: past embeddings and past class weights as virtual classes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

import torch

from dml_core import centers_per_class_of, class_fraction_of, is_class_loss
from dml_losses.arguments import check_non_negative, check_whole, show
from dml_losses.functional.classes import Virtual

_log = logging.getLogger(__name__)
_QUEUES = ("queue_embeddings", "queue_labels", "queue_weights")


class MemVir(torch.nn.Module):
    """A class loss that also uses the embeddings and class weights of N earlier steps, as virtual
    classes.

    L(X ∪ X̃, W ∪ W̃) = mean of the loss over the rows of both, C·(min(⌊(i − U)/(M + 1)⌋, N) + 1)
    classes at step i ≥ U

    The embeddings and class weights of each step are queued as constants. The loss uses each (M +
    1)-th step of the queue, newest first, and adds C to the labels per step, so that a class of an
    earlier step is an extra class. Use it if a class loss overfits to the training classes, after
    you chose its temperature.

    Source: Learning with Memory-based Virtual Classes for Deep Metric Learning, Eq. 4-5 and
    Algorithm 1: the queue is read before it is written, and steps are only stored after the
    warm-up. No departure. If `step_pacing` is false (section 3.4, "w/o step-pacing"), steps are
    stored from N(M + 1) steps before step U, so that all N virtual copies are added at once, at
    step U or when N(M + 1) steps are stored.

    The queue, N(M + 1) copies of all class weights, is in the state dict. The size, `queue_bytes`,
    is logged first.

    Args:
        loss: any class loss, called as ``loss(embeddings, labels, class_weights)``, with an
            attribute ``class_weights``. If its forward is marked by
            `dml_losses.functional.classes.takes_virtual`, it gets the past as constants, for about
            half the cost of a call with all rows and classes.
        num_steps: N ≥ 0, the number of earlier steps to use.
        margin: M ≥ 0, the number of steps to skip between used steps; 0 to 100 in the paper, by
            data set.
        warmup_steps: U ≥ 0, the number of training steps before the first step is queued; 50 epochs
            in the paper.
        queue_dtype: ``"float32"``, or ``"bfloat16"`` to halve the memory.
        queue_on_cpu: keep the queue on the CPU when the module moves; each step copies N queued
            steps to the device.
        step_pacing: add virtual classes step by step, as in Eq. 4; if false, add them all at once.
        warmup_epochs: U in epochs of `steps_per_epoch`, rounded to the nearest step, to use instead
            of `warmup_steps`.
        steps_per_epoch: the number of batches per epoch; set by dml-train.

    Raises:
        TypeError: if the loss has no class weights, or a count isn't an integer.
        ValueError: if a count is below 0, `queue_dtype` is unknown, the loss uses a fraction of the
            classes, or `warmup_epochs` is given with `warmup_steps` or without `steps_per_epoch`.
    """

    queue_embeddings: torch.Tensor  # (slots, rows, D)
    queue_labels: torch.Tensor  # (slots, rows) int64
    queue_weights: torch.Tensor  # (slots, C, D)
    queue_rows: torch.Tensor  # (slots,) int64: the filled rows of each slot
    counters: torch.Tensor  # (2,) int64: training steps, queued steps

    def __init__(
        self,
        loss: torch.nn.Module,
        num_steps: int,
        margin: int,
        warmup_steps: int = 0,
        queue_dtype: Literal["float32", "bfloat16"] = "float32",
        queue_on_cpu: bool = False,
        step_pacing: bool = True,
        warmup_epochs: float = 0.0,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if not is_class_loss(loss):
            raise TypeError(
                f"loss is {type(loss).__name__}, which has no class_weights; expected a class loss "
                "such as NormSoftmax (to use a memory with a pair loss, see CrossBatchMemory)"
            )
        if (class_fraction := class_fraction_of(loss)) < 1:
            raise ValueError(
                f"loss is {type(loss).__name__} with class_fraction = {class_fraction}; expected "
                "class_fraction = 1, since virtual classes are past copies of all classes"
            )
        if queue_dtype not in ("float32", "bfloat16"):
            raise ValueError(f"queue_dtype is {queue_dtype!r}; expected 'float32' or 'bfloat16'")
        self.loss = loss
        self.num_steps = check_whole("num_steps", num_steps, 0)
        self.margin = check_whole("margin", margin, 0)
        self.warmup_steps = _warmup_steps(warmup_steps, warmup_epochs, steps_per_epoch)
        self.step_pacing = step_pacing
        self.queue_on_cpu = queue_on_cpu
        self._takes_virtual = _takes_virtual(loss)

        slots, (num_rows, dim) = self.num_steps * (self.margin + 1), self.class_weights.shape
        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[queue_dtype]
        num_bytes = slots * num_rows * dim * dtype.itemsize
        _log.log(
            logging.WARNING if num_bytes >= 2**30 else logging.INFO,
            "MemVir keeps %d copies of the class weights: %.2f GiB",
            slots,
            num_bytes / 2**30,
        )
        device = torch.device("cpu") if queue_on_cpu else self.class_weights.device
        for name, tensor in {
            # The first batch determines the number of rows.
            "queue_embeddings": torch.zeros(slots, 0, dim, dtype=dtype, device=device),
            "queue_labels": torch.zeros(slots, 0, dtype=torch.int64, device=device),
            "queue_weights": torch.zeros(slots, num_rows, dim, dtype=dtype, device=device),
            "queue_rows": torch.zeros(slots, dtype=torch.int64),
            "counters": torch.zeros(2, dtype=torch.int64),
        }.items():
            self.register_buffer(name, tensor)
        # Keep these numbers on the host, too, since reading the buffers would wait for an
        # accelerator at each step.
        self._rows, self._steps, self._stored = [0] * slots, 0, 0

    @property
    def class_weights(self) -> torch.Tensor:
        """The class weights of the wrapped loss, (C, D)."""
        weights = self.loss.class_weights
        assert isinstance(weights, torch.Tensor)
        return weights

    @property
    def queue_bytes(self) -> int:
        """The size of the queued class weights in bytes: N(M + 1) copies."""
        return self.queue_weights.numel() * self.queue_weights.element_size()

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        class_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,) in [0, C); in training,
        queue the step.
        """
        weights = self.class_weights if class_weights is None else class_weights
        slots = self._select_slots()
        if not slots:
            value: torch.Tensor = self.loss(embeddings, labels, weights)
        else:
            value = self._with_virtual_classes(embeddings, labels, weights, slots)
        if self.training:
            # Store steps from step U on, or early enough to fill the queue at step U.
            first_stored = self.warmup_steps - (0 if self.step_pacing else len(self._rows))
            if self._steps >= first_stored and self.num_steps:
                self._enqueue(embeddings, labels, weights)
            self._set_counters(self._steps + 1, self._stored)
        return value

    extra_repr = show("num_steps", "margin", "warmup_steps", "step_pacing", "queue_bytes")

    def _select_slots(self) -> list[int]:
        """Select the slots to use, newest first: queue positions M, 2M + 1, … counted back from the
        newest.
        """
        num_slots = len(self._rows)
        filled = min(self._stored, num_slots)
        if not self.step_pacing and filled < num_slots:
            return []
        return [
            (self._stored - 1 - back) % num_slots
            for back in range(self.margin, filled, self.margin + 1)
        ]

    def _with_virtual_classes(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor,
        slots: list[int],
    ) -> torch.Tensor:
        num_classes, device = len(weights) // centers_per_class_of(self.loss), embeddings.device
        rows = [self.queue_embeddings[slot, : self._rows[slot]] for slot in slots]
        raised = [
            self.queue_labels[slot, : self._rows[slot]] + (age + 1) * num_classes
            for age, slot in enumerate(slots)
        ]
        with torch.autocast(rows[0].device.type, enabled=False):  # see `Virtual.join`
            past = Virtual(
                weights,
                torch.cat(rows).to(device),
                torch.cat(raised).to(device),
                tuple(self.queue_weights[slot].to(device) for slot in slots),
            )
        joined = (
            (embeddings, labels, past) if self._takes_virtual else past.join(embeddings, labels)
        )
        value: torch.Tensor = self.loss(*joined)
        return value

    @torch.no_grad()
    def _enqueue(
        self, embeddings: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor
    ) -> None:
        slot, count = self._stored % len(self._rows), len(embeddings)
        if count > self.queue_labels.shape[1]:  # the first batch, or the largest so far
            self._widen(count)
        self.queue_embeddings[slot, :count].copy_(embeddings)
        self.queue_labels[slot, :count].copy_(labels)
        self.queue_weights[slot].copy_(weights)
        self._rows[slot] = count
        self.queue_rows[slot].fill_(count)
        self._set_counters(self._steps, self._stored + 1)

    def _widen(self, rows: int) -> None:
        for name in ("queue_embeddings", "queue_labels"):
            old = getattr(self, name)
            # A buffer that is made in inference mode can't be written in training.
            with torch.inference_mode(False):
                wider = old.new_zeros(old.shape[0], rows, *old.shape[2:])
            wider[:, : old.shape[1]] = old
            setattr(self, name, wider)

    def _set_counters(self, steps: int, stored: int) -> None:
        self._steps, self._stored = steps, stored
        self.counters[0].fill_(steps)
        self.counters[1].fill_(stored)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> MemVir:
        kept = {name: self._buffers.pop(name) for name in _QUEUES} if self.queue_on_cpu else {}
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            self._buffers.update(kept)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        saved = {name: state_dict.get(f"{prefix}{name}") for name in _QUEUES}
        weights, rows = saved["queue_weights"], saved["queue_labels"]
        if weights is not None and weights.shape != self.queue_weights.shape:
            errors: list[str] = others[-1]
            errors.append(
                f"the saved queue {prefix[:-1]!r} holds {weights.shape[0]} steps of weights "
                f"{tuple(weights.shape[1:])}; this one holds {self.queue_weights.shape[0]} of "
                f"{tuple(self.queue_weights.shape[1:])}: make MemVir with the saved num_steps and "
                "margin, since num_steps * (margin + 1) is the number of steps"
            )
        elif rows is not None and rows.shape[1] != self.queue_labels.shape[1]:
            dim = self.queue_embeddings.shape[2]
            self.queue_embeddings = self.queue_embeddings.new_zeros(*rows.shape, dim)
            self.queue_labels = self.queue_labels.new_zeros(rows.shape)
        super()._load_from_state_dict(state_dict, prefix, *others)
        self._steps, self._stored = self.counters.tolist()
        self._rows = self.queue_rows.tolist()


def _warmup_steps(steps: int, epochs: float, steps_per_epoch: int | None) -> int:
    """Return the warm-up in steps."""
    if not epochs:
        return check_whole("warmup_steps", steps, 0)
    if steps:
        raise ValueError(
            f"warmup_steps is {steps} and warmup_epochs is {epochs}; expected only one of them"
        )
    if steps_per_epoch is None:
        raise ValueError(
            f"warmup_epochs is {epochs} without steps_per_epoch; "
            "set steps_per_epoch to the number of batches per epoch, or use warmup_steps"
        )
    return round(
        check_non_negative("warmup_epochs", epochs)
        * check_whole("steps_per_epoch", steps_per_epoch, 1)
    )


def _takes_virtual(loss: torch.nn.Module) -> bool:
    """Tell whether a loss, or the loss inside a compiled one, takes `Virtual` class weights."""
    # torch.compile returns a module with forward(*args, **kwargs), and torch has no public function
    # to get the original module. The original is the child `_orig_mod`, a name that torch can't
    # change, since saved state dicts have it.
    original = dict(loss.named_children()).get("_orig_mod", loss)
    return getattr(original.forward, "takes_virtual", False)

"""A memory of past embeddings: a ring buffer of fixed shape that is completely saved in the state
dict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Contents(NamedTuple):
    """A copy of the `n` filled rows of a queue, oldest first; later writes to the queue don't
    change the copy.
    """

    embeddings: Tensor  # (n, D)
    labels: Tensor  # (n,) int64
    extras: dict[str, Tensor]  # name to (n, ...)


class MemoryQueue(nn.Module):
    """A ring buffer of the newest `capacity` embeddings, with labels and optional extra values.

    Source: the memory module of Wang et al. 2020, Cross-Batch Memory for Embedding Learning, Sec.
    3.2. Departure: the write position and the number of filled rows are also buffers, so that a
    resumed run has the same queue. Buffers always have the full shape, so that a new queue of this
    capacity can load a state dict.

    Args:
        capacity: the largest number of rows, at least 1.
        embedding_dim: D, at least 1.
        extras: values to store per row. Maps a name to an example value, which gives shape and
            dtype, like ``{"step": torch.zeros((), dtype=torch.int64)}``.
        dtype: the dtype of the stored embeddings; use ``torch.bfloat16`` to halve the memory.
            Default: float32.

    Raises:
        ValueError: if the capacity or dimension is below 1, or if an extra is named like an
            attribute of the queue.
    """

    embeddings: Tensor
    labels: Tensor
    pointer: Tensor
    fill: Tensor

    def __init__(
        self,
        capacity: int,
        embedding_dim: int,
        extras: Mapping[str, Tensor] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        for name, value in (("capacity", capacity), ("embedding_dim", embedding_dim)):
            if value < 1:
                raise ValueError(f"{name} is {value}; expected at least 1")
        self.capacity, self.embedding_dim = capacity, embedding_dim
        self.register_buffer("embeddings", torch.zeros(capacity, embedding_dim, dtype=dtype))
        self.register_buffer("labels", torch.zeros(capacity, dtype=torch.int64))
        self.register_buffer(
            "pointer", torch.zeros((), dtype=torch.int64)
        )  # where the next row goes
        self.register_buffer(
            "fill", torch.zeros((), dtype=torch.int64)
        )  # the number of filled rows
        self.extra_names = tuple(extras or ())
        for name, example in (extras or {}).items():
            if hasattr(self, name):
                raise ValueError(
                    f"an extra is named {name!r}, like an attribute of the queue; choose a "
                    "different name"
                )
            self.register_buffer(name, torch.zeros(capacity, *example.shape, dtype=example.dtype))
        # Keep both numbers on the host, too, since reading the buffers would wait for the GPU at
        # each step.
        self._pointer = self._fill = 0

    def __len__(self) -> int:
        """Return the number of filled rows."""
        return self._fill

    @torch.no_grad()
    def enqueue(self, embeddings: Tensor, labels: Tensor, **extras: Tensor) -> None:
        """Append rows, which replace the oldest rows when the queue is full; only the newest
        `capacity` rows are kept.

        Args:
            embeddings: (n, D), any floating dtype; detached and stored in the queue's dtype.
            labels: integers of shape (n,).
            **extras: (n, ...), must be given for all extras of the queue.

        Raises:
            ValueError: if shapes or extras don't match the queue, which is then unchanged.
        """
        rows = {"embeddings": embeddings, "labels": labels, **extras}
        self._check_shapes(rows)
        count = len(embeddings)
        kept = min(count, self.capacity)
        # Also move the pointer for dropped rows, so that one call has the same effect as a call per
        # row.
        first = (self._pointer + count - kept) % self.capacity
        head = min(kept, self.capacity - first)
        for name, value in rows.items():
            ring, newest = getattr(self, name), value[count - kept :]
            ring[first : first + head].copy_(newest[:head])
            ring[: kept - head].copy_(newest[head:])
        self._set_counters(
            (self._pointer + count) % self.capacity, min(self._fill + count, self.capacity)
        )

    def contents(self) -> Contents:
        """Copy the filled rows, oldest first: (n, D), (n,) and the extras; n is 0 if the queue is
        empty.
        """

        def in_order(ring: Tensor) -> Tensor:
            return torch.cat((ring[self._pointer : self._fill], ring[: self._pointer]))

        # Turn autocast off: its cat rejects half precision in a different dtype, such as the
        # queue's.
        with torch.autocast(self.embeddings.device.type, enabled=False):
            extras = {name: in_order(getattr(self, name)) for name in self.extra_names}
            return Contents(in_order(self.embeddings), in_order(self.labels), extras)

    @torch.no_grad()
    def reset(self) -> None:
        """Empty the queue."""
        for buffer in self.buffers():
            buffer.zero_()
        self._set_counters(0, 0)

    def extra_repr(self) -> str:
        """Return the arguments, for `repr`."""
        return f"capacity={self.capacity}, embedding_dim={self.embedding_dim}, filled={self._fill}"

    def _check_shapes(self, rows: Mapping[str, Tensor]) -> None:
        expected = ("embeddings", "labels", *self.extra_names)
        if set(rows) != set(expected):
            raise ValueError(
                f"got rows for {', '.join(sorted(rows))}; expected {', '.join(sorted(expected))}"
            )
        count = rows["embeddings"].shape[0] if rows["embeddings"].ndim else 0
        for name, value in rows.items():
            shape = (count, *getattr(self, name).shape[1:])
            if tuple(value.shape) != shape:
                raise ValueError(f"{name} has shape {tuple(value.shape)}; expected {shape}")

    def _set_counters(self, pointer: int, fill: int) -> None:
        self._pointer, self._fill = pointer, fill
        self.pointer.fill_(pointer)
        self.fill.fill_(fill)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        saved = state_dict.get(f"{prefix}embeddings")
        if saved is not None and saved.shape != self.embeddings.shape:
            errors: list[str] = others[-1]
            errors.append(
                f"the saved queue {prefix[:-1]!r} has capacity {saved.shape[0]} and dimension "
                f"{saved.shape[1]}; this one has {self.capacity} and {self.embedding_dim}: make "
                "the queue with the saved values"
            )
        super()._load_from_state_dict(state_dict, prefix, *others)
        self._pointer, self._fill = int(self.pointer), int(self.fill)

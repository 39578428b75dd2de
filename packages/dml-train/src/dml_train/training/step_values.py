"""The values of steps, buffered on the device: reading one would wait for the GPU at every step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from dml_train.training.loggers import CLOCK


class StepValues:
    """Values of the steps since the last flush, and the clock that measures images per second."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, Mapping[str, Tensor], Mapping[str, float]]] = []
        self.restart_clock()

    def add(
        self, step: int, on_device: Mapping[str, Tensor], known: Mapping[str, float], images: int
    ) -> None:
        """Buffer the values of a step.

        Args:
            step: counted from 1.
            on_device: scalar tensors, not yet read.
            known: values that the host knows already.
            images: images in the step's global batch.
        """
        self._rows.append((step, on_device, known))
        self._images += images

    def flush(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Read all buffered values in one transfer, empty the buffer, and yield each step with its values.

        The last step also has ``time/images_per_second``, measured since the last flush.
        """
        rows, self._rows = self._rows, []
        stacked = torch.stack(
            [torch.stack([v.float() for v in on_device.values()]) for _, on_device, _ in rows]
        )
        numbers = stacked.tolist()
        speed = self._images / (time.perf_counter() - self._start)
        self.restart_clock()
        for (step, on_device, known), row in zip(rows, numbers, strict=True):
            clock = {f"{CLOCK}images_per_second": speed} if step == rows[-1][0] else {}
            yield step, {**dict(zip(on_device, row, strict=True)), **known, **clock}

    def restart_clock(self) -> None:
        """Measure images per second from now on, so that evaluating and saving don't count."""
        self._start, self._images = time.perf_counter(), 0

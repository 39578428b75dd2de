"""The values of steps, buffered on the device, since reading after every step would wait for the
GPU.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import TypeVar

import torch
from torch import Tensor, nn

from dml_core import LoggedLoss
from dml_train.training.loggers import CLOCK

_LEAST_SECONDS = 10.0  # seconds of training to measure before the share of loading is reported
Batch = TypeVar("Batch")


class StepValues:
    """Values of the steps since the last flush, and the clock that measures images per second and
    loading.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[int, Mapping[str, Tensor], Mapping[str, float]]] = []
        self._total_loading = self._total_seconds = 0.0
        self.restart_clock()

    def time_loading(self, batches: Generator[Batch, None, None]) -> Iterator[Batch]:
        """Yield batches, and time the wait for each except the first, which includes starting the
        loaders.
        """
        with closing(batches):
            for batch in batches:
                self.restart_clock()
                yield batch
                break
            start = time.perf_counter()
            for batch in batches:
                self._loading += time.perf_counter() - start
                yield batch
                start = time.perf_counter()

    @property
    def loading_share(self) -> float:
        """The share of training time spent waiting for batches; 0 until enough steps are timed."""
        known = self._total_seconds >= _LEAST_SECONDS
        return self._total_loading / self._total_seconds if known else 0.0

    def add(
        self, step: int, on_device: Mapping[str, Tensor], known: Mapping[str, float], images: int
    ) -> None:
        """Buffer the values of a step.

        Args:
            step: step, counted from 1.
            on_device: scalar tensors, not yet read.
            known: values that are already on the host.
            images: number of images in the global batch.
        """
        self._rows.append((step, on_device, known))
        self._images += images

    def flush(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Read all buffered values in a single transfer, empty the buffer, and yield steps with
        values.

        The last step also includes ``time/images_per_second``, measured since the last flush.
        """
        rows, self._rows = self._rows, []
        stacked = torch.stack(
            [torch.stack([v.float() for v in on_device.values()]) for _, on_device, _ in rows]
        )
        numbers = stacked.tolist()
        seconds = time.perf_counter() - self._start
        speed = self._images / seconds
        self._total_seconds += seconds
        self._total_loading += self._loading
        self.restart_clock()
        for (step, on_device, known), row in zip(rows, numbers, strict=True):
            clock = {f"{CLOCK}images_per_second": speed} if step == rows[-1][0] else {}
            yield step, {**dict(zip(on_device, row, strict=True)), **known, **clock}

    def restart_clock(self) -> None:
        """Restart the clock, so that the time of evaluating and saving doesn't count."""
        self._start, self._images, self._loading = time.perf_counter(), 0, 0.0


def collect_logged_values(loss: nn.Module) -> dict[str, Tensor]:
    """Collect the values that the modules of a loss offer to log, by path:
    ``loss.terms.triplet``.
    """
    return {
        ".".join(filter(None, ("loss", path, name))): value
        for path, module in loss.named_modules()
        if isinstance(module, LoggedLoss)
        for name, value in module.logged_values().items()
    }

"""One of two ranks that use torchmetrics to measure the same items over gloo."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dml_eval_rs.adapters.torchmetrics import RetrievalMetric


def measure(rank: int, store: str, data: str) -> list[dict[str, Any]]:
    """Return this rank's values for a distributed sampler's items, and for halves of different
    sizes.
    """
    x, labels, options = torch.load(data)
    dist.init_process_group(
        "gloo",
        rank=rank,
        world_size=2,
        store=dist.FileStore(store, 2),
        timeout=timedelta(seconds=200),
    )
    try:
        sampled, halved = RetrievalMetric(options), RetrievalMetric(options)
        for place in torch.arange(rank, 42, 2).remainder(40).split(4):  # repeats items 0 and 1
            sampled.update(x[place], labels[place], indices=place)
        half = slice(0, 25) if rank == 0 else slice(25, 40)
        halved.update(x[half], labels[half])
        return [sampled.compute(), halved.compute()]
    finally:
        dist.destroy_process_group()

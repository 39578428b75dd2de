"""Measure embeddings in shards on the ranks of torch.distributed; all ranks receive the result.

torchrun --nproc-per-node 2 on_ranks.py labels.npy part-0.npy part-1.npy part-2.npy
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Any

import numpy as np
import torch.distributed as dist

from dml_eval_rs import evaluate_shards


def on_ranks(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterable[Any]:
    """Run a task on a single rank, and return the results of all tasks on every rank."""
    own = [function(task) for task in islice(tasks, dist.get_rank(), None, dist.get_world_size())]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return chain.from_iterable(every)


def main(labels: str, *shards: str) -> None:
    dist.init_process_group("gloo")
    result = evaluate_shards(shards, np.load(labels), map=on_ranks)
    if dist.get_rank() == 0:
        print(json.dumps(result.to_dict()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

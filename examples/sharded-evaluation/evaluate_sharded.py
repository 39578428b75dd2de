"""Evaluate with a gallery spread over ranks: each rank counts in its own part, and the counts are summed.

    torchrun --nproc-per-node 2 evaluate_sharded.py gallery.npy labels.npy --queries 1000

Every rank memory-maps the files and reads only its own rows and the queries (here the first rows). Ranks exchange a few
numbers for each query's positives, never an embedding. The result has the same bits as one call on one machine.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch.distributed as dist

from dml_eval_rs import PartialCounts, StreamingEvaluator


def gather(partial: PartialCounts) -> list[PartialCounts]:
    """Gather the other ranks' partial counts."""
    every: list[PartialCounts | None] = [None] * dist.get_world_size()
    dist.all_gather_object(every, partial)
    return [other for rank, other in enumerate(every) if other is not None and rank != dist.get_rank()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gallery")
    parser.add_argument("labels")
    parser.add_argument("--queries", type=int, default=1000, help="how many of the first items are queries")
    parser.add_argument("--block", type=int, default=100_000, help="how many items to read at a time")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    gallery, labels = np.load(options.gallery, mmap_mode="r"), np.load(options.labels)
    asking = min(options.queries, len(gallery))
    evaluator = StreamingEvaluator(gallery[:asking], labels[:asking], indices=np.arange(asking), threads=1)
    mine = range(rank * len(gallery) // world, (rank + 1) * len(gallery) // world)
    blocks = [
        range(start, min(start + options.block, mine.stop))
        for start in range(mine.start, mine.stop, options.block)
    ]

    for block in blocks:
        evaluator.find_positives(
            gallery[block.start : block.stop], labels[block.start : block.stop], block.start
        )
    for partial in gather(evaluator.partial_counts()):
        evaluator.merge(partial)
    for block in blocks:
        evaluator.count_negatives(
            gallery[block.start : block.stop], labels[block.start : block.stop], block.start
        )
    for partial in gather(evaluator.partial_counts()):
        evaluator.merge(partial)

    if rank == 0:
        print(json.dumps(evaluator.result().to_dict()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

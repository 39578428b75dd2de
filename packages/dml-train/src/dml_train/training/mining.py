"""Hard negatives mined between epochs, for samplers that use hard negatives.

Shapes: `N` training items, `D` embedding dimension, `k` negatives per item.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_core import BatchSampler, DmlError, MiningEvaluator, MiningSampler
from dml_train.ranks.ranks import Ranks
from dml_train.training.build import Experiment


def segments(sampler: BatchSampler, begin: int, end: int) -> list[range]:
    """Split the steps from `begin` to `end` where negatives are mined, since later batches depend
    on the negatives.
    """
    if not isinstance(sampler, MiningSampler):
        return [range(begin, end)]
    length = len(sampler)
    starts = [
        epoch * length
        for epoch in range(begin // length + 1, -(-end // length))
        if sampler.mines_before(epoch)
    ]
    cuts = [begin, *starts, end]
    return [range(first, last) for first, last in pairwise(cuts)]


def is_mining_due(sampler: BatchSampler, step: int) -> bool:
    """Return whether to mine negatives before this step, counted from 0."""
    epoch, position = divmod(step, len(sampler))
    return isinstance(sampler, MiningSampler) and position == 0 and sampler.mines_before(epoch)


def mine(experiment: Experiment, console: Console, ranks: Ranks) -> None:
    """Find negatives with the network's current weights, and pass these to the sampler. Every rank
    must call this.

    On every rank, raise a `DmlError` if the evaluator raises an error for the embeddings.
    """
    sampler, evaluator = experiment.sampler, experiment.evaluator
    assert isinstance(sampler, MiningSampler)
    assert isinstance(evaluator, MiningEvaluator)
    part = experiment.embed_share(
        experiment.model, experiment.train, console, ranks, "embed to mine negatives"
    )
    parts = ranks.gather_object(part)

    def find() -> npt.NDArray[np.int64]:
        try:
            return sampler.find_negatives(evaluator, np.concatenate(parts))
        except (TypeError, ValueError) as error:
            raise DmlError(f"can't mine negatives: {error}") from error

    sampler.set_negatives(ranks.run_on_first(find))

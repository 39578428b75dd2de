"""Hard negatives mined between epochs, for samplers that use them.

Shapes: `N` training items, `D` embedding dimension, `k` negatives of each item.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_core import BatchSampler, DmlError, Evaluator, MiningEvaluator, MiningSampler
from dml_train.measure.embed import embed, items_of_rank
from dml_train.progress import stage
from dml_train.ranks.ranks import Ranks
from dml_train.recipe.tables import Recipe

if TYPE_CHECKING:
    from dml_train.training.build import Experiment


def check_mining(recipe: Recipe, sampler: BatchSampler, evaluator: Evaluator) -> None:
    """Check that the evaluator can find the negatives that the sampler needs.

    Raises:
        DmlError: if it can't.
    """
    if isinstance(sampler, MiningSampler) and not isinstance(evaluator, MiningEvaluator):
        raise DmlError(
            f"the sampler {recipe.sampler['name']!r} mines hard negatives, which the evaluator "
            f"{recipe.evaluation.name!r} doesn't find; expected one with hard_negatives(), such as "
            "evaluation.name = 'exact'"
        )


def segments(sampler: BatchSampler, begin: int, end: int) -> list[range]:
    """Divide the steps from `begin` to `end` where negatives are mined: batches of the next segment depend on them."""
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
    """Tell whether negatives are mined before this step, counted from 0."""
    epoch, position = divmod(step, len(sampler))
    return isinstance(sampler, MiningSampler) and position == 0 and sampler.mines_before(epoch)


def mine(experiment: Experiment, console: Console, ranks: Ranks) -> None:
    """Find negatives by the training network's weights, and give them to the sampler. Every rank must call it.

    Raises:
        DmlError: on every rank, if the evaluator refuses the embeddings.
    """
    sampler, evaluator = experiment.sampler, experiment.evaluator
    assert isinstance(sampler, MiningSampler)
    assert isinstance(evaluator, MiningEvaluator)
    items = items_of_rank(len(experiment.train), ranks)
    with stage(console, "embed to mine negatives", len(items)) as show:
        part = embed(
            experiment.model,
            experiment.train,
            device=experiment.device,
            precision=experiment.precision,
            workers=experiment.recipe.training.workers,
            items=items,
            progress=lambda done, _: show(done, ""),
        )
    parts = ranks.gather_object(part)

    def find() -> npt.NDArray[np.int64]:
        try:
            return sampler.find_negatives(evaluator, np.concatenate(parts))
        except (TypeError, ValueError) as error:
            raise DmlError(f"can't mine negatives: {error}") from error

    sampler.set_negatives(ranks.run_on_first(find))

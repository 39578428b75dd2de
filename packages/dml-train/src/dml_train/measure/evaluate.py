"""From embeddings to metrics, on one rank or shared by several."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_core import DmlError, Evaluation, Evaluator, Registry, ShardedEvaluator
from dml_train.files import read_array, write_array
from dml_train.ranks.ranks import Ranks
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder

_CLUSTERING = ("nmi", "n_clusters")  # the evaluator's options that ask for clusters


@dataclass(frozen=True, slots=True)
class Embedded:
    """Queries, and the gallery that they are searched in; without one they are searched in themselves.

    Args:
        embeddings: (Q, D) floating.
        labels: (Q,).
        gallery: (G, D).
        gallery_labels: (G,).
    """

    embeddings: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    gallery: npt.NDArray[Any] | None = None
    gallery_labels: npt.NDArray[Any] | None = None

    @classmethod
    def read(cls, folder: RunFolder) -> Embedded:
        """What a finished run left in its folder, mapped and not read.

        Raises:
            DmlError: if an array is missing or damaged.
        """
        queries = read_array(folder.embeddings()), read_array(folder.labels())
        if not folder.embeddings("gallery").exists():
            return cls(*queries)
        return cls(*queries, read_array(folder.embeddings("gallery")), read_array(folder.labels("gallery")))

    def write(self, folder: RunFolder) -> None:
        """Leave the arrays in the run's folder."""
        write_array(folder.embeddings(), self.embeddings)
        write_array(folder.labels(), self.labels)
        if self.gallery is not None and self.gallery_labels is not None:
            write_array(folder.embeddings("gallery"), self.gallery)
            write_array(folder.labels("gallery"), self.gallery_labels)


def build_evaluator(recipe: Recipe, registry: Registry, *, clustering: bool = True) -> Evaluator:
    """Build the evaluator of a recipe.

    Args:
        recipe: its ``[evaluation]`` table names the evaluator and its options.
        registry: provides the evaluator.
        clustering: whether the evaluator measures clustering (NMI) if the recipe says so; it takes most of the time.
    """
    table = recipe.evaluation.component()
    if not clustering:
        table = {key: value for key, value in table.items() if key not in _CLUSTERING}
    evaluator: Evaluator = registry.build("evaluators", table, {"seed": recipe.training.seed})
    return evaluator


def evaluate(evaluator: Evaluator, embedded: Embedded) -> Evaluation:
    """What the evaluator measures; what it refuses in the arrays becomes a `DmlError`."""
    with _refusals():
        return evaluator.evaluate(
            embedded.embeddings, embedded.labels, embedded.gallery, embedded.gallery_labels
        )


def evaluate_on_ranks(ranks: Ranks, evaluator: Evaluator, embedded: Embedded) -> dict[str, Any]:
    """The figures that the evaluator measures, on every rank; what it refuses becomes a `DmlError` on each.

    Args:
        ranks: who share the work if the evaluator can share it (`ShardedEvaluator`); if not, the first does it.
        evaluator: what measures.
        embedded: whole on all ranks if they share the work, else on the first.
    """
    if ranks.world_size > 1 and isinstance(evaluator, ShardedEvaluator):
        with _refusals():
            return evaluator.evaluate_sharded(
                ranks, embedded.embeddings, embedded.labels, embedded.gallery, embedded.gallery_labels
            ).to_dict()
    return ranks.run_on_first(lambda: evaluate(evaluator, embedded).to_dict())


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        raise DmlError(f"can't evaluate: {error}") from error


def flatten_metrics(result: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """An evaluation's finite numbers under one name each: ``recall/1``, ``map_at_r``."""
    found: dict[str, float] = {}
    for name, value in result.items():
        if isinstance(value, Mapping):
            found |= flatten_metrics(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[f"{prefix}{name}"] = value
    return found


def pack_codes(embeddings: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.uint8]:
    """Binary codes, a bit a dimension, set where it is above 0: (N, ceil(D / 8)), most significant bit first."""
    return np.packbits(embeddings > 0, axis=1)

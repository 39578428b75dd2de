"""From embeddings to metrics, on one rank or shared by several.

Shapes: `N` items, `Q` queries, `G` gallery, `D` embedding dimension.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml_core import DmlError, Evaluation, Evaluator, Registry, Relation, ShardedEvaluator, takes_relations
from dml_train.files import read_array, write_array, write_atomically
from dml_train.ranks.ranks import Ranks
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder

_LABELS_ALONE = Relation()
_CLUSTERING = ("nmi", "nmi_average", "n_clusters")  # the evaluator's options that ask for clusters


@dataclass(frozen=True, slots=True)
class Embedded:
    """Embedded queries, and the gallery that they are searched in; without a gallery they search one another.

    Args:
        embeddings: (Q, D) floating.
        labels: (Q,).
        gallery: (G, D).
        gallery_labels: (G,).
        groups: (Q,) integers or strings; see `dml_core.GroupedSplit`.
        gallery_groups: (G,), of the queries' kind.
        relation: matches listed for the queries.
    """

    embeddings: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    gallery: npt.NDArray[Any] | None = None
    gallery_labels: npt.NDArray[Any] | None = None
    groups: npt.NDArray[Any] | None = None
    gallery_groups: npt.NDArray[Any] | None = None
    relation: Relation = _LABELS_ALONE

    @classmethod
    def read(cls, folder: RunFolder) -> Embedded:
        """Map a finished run's arrays from its folder into memory.

        Raises:
            DmlError: if the run isn't finished, or an array is missing, changed or damaged.
        """
        written = folder.read_manifest()
        optional = {name: path for name, path in _optional_files(folder).items() if path.name in written}
        relation = [folder.relation] if folder.relation.name in written else []
        folder.check_results(folder.embeddings(), folder.labels(), *optional.values(), *relation)
        return cls(
            read_array(folder.embeddings()),
            read_array(folder.labels()),
            **{name: read_array(path) for name, path in optional.items()},
            relation=_read_relation(folder) if relation else _LABELS_ALONE,
        )

    def write(self, folder: RunFolder) -> None:
        """Write the arrays into the run's folder, and remove files of those that there are none of."""
        write_array(folder.embeddings(), self.embeddings)
        write_array(folder.labels(), self.labels)
        for name, path in _optional_files(folder).items():
            array = getattr(self, name)
            if array is None:
                path.unlink(missing_ok=True)
            else:
                write_array(path, array)
        lists = {
            f"{name}_{place}": array
            for name in ("relevant", "ignored")
            for place, array in enumerate(getattr(self.relation, name) or ())
        }
        if lists:
            write_atomically(folder.relation, lambda file: np.savez(file, allow_pickle=False, **lists))
        else:
            folder.relation.unlink(missing_ok=True)

    def matching(self) -> dict[str, Any]:
        """Return what a `RelationEvaluator` is told beside the labels, by keyword; empty for labels alone."""
        given = {
            "groups": self.groups,
            "gallery_groups": self.gallery_groups,
            "relevant": self.relation.relevant,
            "ignored": self.relation.ignored,
        }
        return {name: value for name, value in given.items() if value is not None}


def _optional_files(folder: RunFolder) -> dict[str, Path]:
    """Return the files of the arrays that only some data sets have, by the names of `Embedded`."""
    return {
        "gallery": folder.embeddings("gallery"),
        "gallery_labels": folder.labels("gallery"),
        "groups": folder.groups(),
        "gallery_groups": folder.groups("gallery"),
    }


def _read_relation(folder: RunFolder) -> Relation:
    try:
        with folder.relation.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            lists = {
                name: tuple(stored[key] for key in sorted(stored.files) if key.startswith(name))
                for name in ("relevant", "ignored")
            }
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DmlError(f"can't read {folder.relation} as a .npz file: {error}") from error
    return Relation(**{name: arrays or None for name, arrays in lists.items()})


class Measurement(NamedTuple):
    """An evaluation on several ranks: every rank has the metrics, and the first one the evaluation."""

    metrics: dict[str, Any]  # `Evaluation.to_dict`
    evaluation: Evaluation | None


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
    """Evaluate embeddings.

    Raises:
        DmlError: if the evaluator refuses the arrays, or takes no groups or lists of matches and there are some.
    """
    if (given := embedded.matching()) and not takes_relations(evaluator):
        raise DmlError(
            f"{type(evaluator).__name__} takes no {' or '.join(given)}, which the data have; expected an evaluator "
            "that does, such as 'exact'"
        )
    with _refusals_as_dml_errors():
        return evaluator.evaluate(
            embedded.embeddings,
            embedded.labels,
            embedded.gallery,
            embedded.gallery_labels,
            **embedded.matching(),
        )


def evaluate_on_ranks(ranks: Ranks, evaluator: Evaluator, embedded: Embedded) -> Measurement:
    """Evaluate embeddings on several ranks.

    Args:
        ranks: they share the work if the evaluator is a `ShardedEvaluator`; otherwise the first rank does all of it.
        evaluator: measures.
        embedded: complete on all ranks if they share the work, else on the first.

    Raises:
        DmlError: on every rank, if the evaluator refuses the arrays.
    """
    if ranks.world_size > 1 and isinstance(evaluator, ShardedEvaluator):
        with _refusals_as_dml_errors():
            shared = evaluator.evaluate_sharded(
                ranks,
                embedded.embeddings,
                embedded.labels,
                embedded.gallery,
                embedded.gallery_labels,
                **embedded.matching(),
            )
        return Measurement(shared.to_dict(), shared)
    evaluation: Evaluation | None = None

    def measure() -> dict[str, Any]:
        nonlocal evaluation
        evaluation = evaluate(evaluator, embedded)
        return evaluation.to_dict()

    metrics = ranks.run_on_first(measure)
    return Measurement(metrics, evaluation)


@contextmanager
def _refusals_as_dml_errors() -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        raise DmlError(f"can't evaluate: {error}") from error


def flatten_metrics(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Give each finite number of an evaluation one name: ``recall/1``, ``map_at_r``."""
    flat: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            flat |= flatten_metrics(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            flat[f"{prefix}{name}"] = value
    return flat


def pack_codes(embeddings: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.uint8]:
    """Pack binary codes, one bit per dimension, set above 0: (N, ceil(D / 8)), most significant bit first."""
    return np.packbits(embeddings > 0, axis=1)

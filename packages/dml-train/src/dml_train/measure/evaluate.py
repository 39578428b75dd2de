"""Evaluate embeddings, on a single rank or shared by all ranks.

Shapes: `N` items, `Q` queries, `G` gallery, `D` embedding dimension.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml_core import (
    METRICS,
    DmlError,
    Evaluation,
    Evaluator,
    InvalidOption,
    Labels,
    Matching,
    PeersEvaluator,
    Registry,
    Relevance,
    RerankingEvaluator,
    RestoringEvaluator,
    metric_family,
    nearest,
    takes_matches,
)
from dml_train.files import read_array, write_array, write_atomically
from dml_train.ranks.ranks import Ranks
from dml_train.recipe.checking import find_old_keys
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class Embedded:
    """Embedded queries, and the gallery to search; by default, the queries search each other."""

    embeddings: npt.NDArray[Any]  # (Q, D) floating
    labels: npt.NDArray[Any]  # (Q,) integers
    gallery: npt.NDArray[Any] | None = None  # (G, D)
    gallery_labels: npt.NDArray[Any] | None = None  # (G,)
    matches: Labels | Relevance | None = None  # which items match, if labels don't suffice
    gallery_matches: Labels | None = None  # for the gallery, if `matches` is a `Labels`

    @classmethod
    def read(cls, folder: RunFolder) -> Embedded:
        """Map a finished run's arrays into memory; raise DmlError if an array is missing, changed
        or damaged.
        """
        written = folder.read_manifest()
        parts = [""] if folder.embeddings("gallery").name not in written else ["", "gallery"]
        has_matches = folder.matches.name in written
        arrays = [path for part in parts for path in (folder.embeddings(part), folder.labels(part))]
        folder.check_results(*arrays, *([folder.matches] if has_matches else []))
        read: list[Any] = [read_array(path) for path in arrays]
        return cls(*read, **_read_matches(folder, *read[1::2]) if has_matches else {})

    def write(self, folder: RunFolder) -> None:
        """Write the arrays to the run's folder, and remove the files of absent arrays."""
        for path, array in {
            folder.embeddings(): self.embeddings,
            folder.labels(): self.labels,
            folder.embeddings("gallery"): self.gallery,
            folder.labels("gallery"): self.gallery_labels,
        }.items():
            if array is None:
                path.unlink(missing_ok=True)
            else:
                write_array(path, array)
        if self.matches is None:
            folder.matches.unlink(missing_ok=True)
        else:
            stored = self.list_matches()
            write_atomically(
                folder.matches, lambda file: np.savez(file, allow_pickle=False, **stored)
            )

    def select(self, columns: slice | npt.NDArray[np.int64]) -> Embedded:
        """Select columns of queries and gallery."""
        gallery = None if self.gallery is None else self.gallery[:, columns]
        return replace(self, embeddings=self.embeddings[:, columns], gallery=gallery)

    def list_matches(self) -> dict[str, npt.NDArray[Any]]:
        """List the arrays of the matches by name, except labels."""
        matches, found = self.matches, dict[str, npt.NDArray[Any] | None]()
        if isinstance(matches, Relevance):
            found = {
                "offsets": matches.offsets,
                "indices": matches.indices,
                "grades": matches.grades,
            }
        elif matches is not None:
            found = {
                "groups": matches.groups,
                "junk": matches.junk,
                "distractors": matches.distractors,
            }
        if matches is not None and matches.ignored is not None:
            found |= {
                "ignored_offsets": matches.ignored.offsets,
                "ignored_indices": matches.ignored.items,
            }
        if self.gallery_matches is not None:
            found["gallery_groups"] = self.gallery_matches.groups
        return {name: array for name, array in found.items() if array is not None}

    def arguments(self) -> tuple[Any, Any, Any, Any]:
        """Return the arguments of `Evaluator.evaluate`."""
        if self.matches is None:
            return self.embeddings, self.labels, self.gallery, self.gallery_labels
        items = None if isinstance(self.matches, Relevance) else self.gallery_matches
        return self.embeddings, self.matches, self.gallery, items

    def matching(self) -> Matching:
        """Return which queries match which items of a search."""
        _, queries, _, items = self.arguments()
        return Matching(queries, items, None if self.gallery is None else len(self.gallery))


def _read_matches(
    folder: RunFolder, labels: npt.NDArray[Any], gallery_labels: npt.NDArray[Any] | None = None
) -> dict[str, Any]:
    """Read the arrays of `list_matches` as the fields of `Embedded`."""
    with folder.matches.open("rb") as file, np.load(file, allow_pickle=False) as npz:
        stored = dict(npz)
    gallery_groups = stored.pop("gallery_groups", None)
    lists = [stored.pop(name) for name in ("ignored_offsets", "ignored_indices") if name in stored]
    stored["ignored"] = tuple(lists) or None
    if "offsets" in stored:
        return {"matches": Relevance(**stored)}
    items = None if gallery_labels is None else Labels(gallery_labels, gallery_groups)
    return {"matches": Labels(labels, **stored), "gallery_matches": items}


class Measurement(NamedTuple):
    """An evaluation on ranks."""

    metrics: dict[str, Any]  # `Evaluation.to_dict`
    evaluation: (
        Evaluation | None
    )  # None on all but the first rank, unless the ranks shared the work


def build_evaluator(recipe: Recipe, registry: Registry, *, clustering: bool = True) -> Evaluator:
    """Build a recipe's evaluator; unless `clustering`, exclude metrics of clusters and pairs, which
    are the slowest.
    """
    table = recipe.evaluation.component()
    return make_evaluator(
        table if clustering else select_retrieval(table), registry, recipe.training.seed
    )


def make_evaluator(table: Mapping[str, Any], registry: Registry, seed: int) -> Evaluator:
    """Make an evaluator, for example ``{"name": "exact", "metrics": ["recall@1"]}``, or raise
    DmlError.
    """
    if (old := find_old_keys(table, registry)) is not None:
        raise old
    evaluator: Evaluator = registry.build("evaluators", table, {"seed": seed})
    return evaluator


def select_retrieval(table: Mapping[str, Any]) -> dict[str, Any]:
    """Remove metrics of clusters and pairs from an evaluator's table, or the key `metrics` if none
    is left.
    """
    kept = {key: value for key, value in table.items() if key not in ("metrics", "n_clusters")}
    names = [
        name
        for name in table.get("metrics", ())
        if (family := metric_family(name)) is None or METRICS[family].kind == "retrieval"
    ]
    return {**kept, "metrics": names} if names else kept


def evaluate(evaluator: Evaluator, embedded: Embedded) -> Evaluation:
    """Evaluate embeddings; see `evaluate_arrays` for the errors."""
    return evaluate_arrays(evaluator, *embedded.arguments())


def evaluate_arrays(
    evaluator: Evaluator,
    embeddings: Any,
    labels: Any,
    gallery: Any = None,
    gallery_labels: Any = None,
) -> Evaluation:
    """Evaluate embeddings; see `Evaluator.evaluate` for the arguments.

    Raise DmlError if the evaluator rejects the arrays, or doesn't support groups or lists and the
    data have some.
    """
    if isinstance(labels, Labels | Relevance) and not takes_matches(evaluator):
        raise DmlError(
            f"{type(evaluator).__name__} only supports labels, but the data have groups or lists "
            "of items; use an evaluator that supports them, for example 'exact'"
        )
    with convert_errors("evaluate"):
        return evaluator.evaluate(embeddings, labels, gallery, gallery_labels)


def evaluate_on_ranks(ranks: Ranks, evaluator: Evaluator, embedded: Embedded) -> Measurement:
    """Evaluate embeddings on ranks, which share the work if the evaluator is a `PeersEvaluator`.

    Otherwise only the first rank evaluates and needs the complete `embedded`. Raise DmlError on all
    ranks if the evaluator rejects the arrays.
    """
    if ranks.world_size > 1 and isinstance(evaluator, PeersEvaluator):
        with convert_errors("evaluate"):
            shared = evaluator.evaluate_with_peers(ranks, *embedded.arguments())
        return Measurement(shared.to_dict(), shared)
    evaluation: Evaluation | None = None

    def measure() -> dict[str, Any]:
        nonlocal evaluation
        evaluation = evaluate(evaluator, embedded)
        return evaluation.to_dict()

    return Measurement(ranks.run_on_first(measure), evaluation)


@contextmanager
def convert_errors(work: str) -> Iterator[None]:
    """Convert an evaluator's errors for bad arrays to a `DmlError`; `work` is a verb."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise DmlError(f"can't {work}: {error}") from error


def select_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Select the finite numbers in an evaluation's metrics."""
    return {
        name: value
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def pack_codes(embeddings: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.uint8]:
    """Pack embeddings into codes (N, ceil(D / 8)): a bit per dimension, set above 0, most
    significant bit first.
    """
    return np.packbits(embeddings > 0, axis=1)


_CHECKSUM = "checksum"  # the name of the array with the checksum


def save_per_query(folder: RunFolder, recipe: Recipe, evaluation: Evaluation) -> None:
    """Save an evaluation's values per query in the run's folder, with a checksum of the evaluator
    and the seed.
    """
    arrays = {
        name: np.asarray(values_Q, dtype=np.float64)
        for name, values_Q in evaluation.per_query.items()
    }
    arrays[_CHECKSUM] = np.array(_checksum(recipe))
    write_atomically(folder.per_query, lambda file: np.savez(file, allow_pickle=False, **arrays))


def restore_evaluation(
    folder: RunFolder, recipe: Recipe, result: Mapping[str, Any], evaluator: Evaluator
) -> Evaluation | None:
    """Restore a run's final evaluation from the run's folder and from `result`, the contents of
    ``evaluation.json``.

    Return None if the evaluator isn't a `RestoringEvaluator`, or if the saved values are missing,
    from a different evaluator, or lack a new metric of the evaluator. Raise DmlError if the file
    was changed or damaged.
    """
    if not isinstance(evaluator, RestoringEvaluator) or not folder.per_query.exists():
        return None
    folder.check_results(folder.per_query)
    with folder.per_query.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        if str(stored[_CHECKSUM]) != _checksum(recipe):
            return None
        per_query = {name: stored[name] for name in stored.files if name != _CHECKSUM}
    try:
        return evaluator.restore(result, per_query)
    except KeyError:  # saved by a version of the evaluator that lacks this metric
        return None


def _checksum(recipe: Recipe) -> str:
    """Return the SHA-256 of the evaluator's table and the seed."""
    described = [recipe.evaluation.component(), recipe.training.seed]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def select_levels(embedded: Embedded, recipe: Recipe, levels: Sequence[str]) -> Embedded:
    """Select levels of a run's embeddings in the given order, for example to compare single levels
    with combinations.

    Source: Wang et al. 2021, Ranked List Loss for Deep Metric Learning, tables 6 and 7.

    Raise DmlError if the run's embedding lacks a level.
    """
    names = list(recipe.backbone.get("levels") or ())
    dims = {
        name: level.dim
        for name, level in zip(names, recipe.embedding.of_levels(len(names) or 1), strict=False)
    }
    stored = recipe.embedding.levels or names
    check_levels(levels, stored)
    ends = np.cumsum([dims[name] for name in stored])
    columns = dict(zip(stored, np.split(np.arange(ends[-1]), ends[:-1])))
    return embedded.select(np.concatenate([columns[name] for name in levels]))


def check_levels(levels: Sequence[str], known: Sequence[str]) -> None:
    """Raise InvalidOption unless all levels are known levels of an embedding."""
    for name in levels:
        if name not in known:
            listed = ", ".join(known) or "only one, without a name"
            raise InvalidOption(
                f"the embedding has no level {name!r}{nearest(name, known)} levels: {listed}"
            )


def select_prefix(embedded: Embedded, prefix: int) -> Embedded:
    """Select the first `prefix` dimensions; raise DmlError unless 1 <= prefix <= D."""
    check_prefixes([prefix], embedded.embeddings.shape[1])
    return embedded.select(slice(prefix))


def evaluate_selected(
    evaluator: Evaluator,
    embedded: Embedded,
    recipe: Recipe,
    levels: Sequence[str],
    prefix: int | None = None,
    expand: Mapping[str, Any] | None = None,
    rerank: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Evaluate a run's embeddings, or only some levels or the first `prefix` dimensions.

    If given, `expand` and `rerank` are the options of `RerankingEvaluator`, to expand the queries
    and to re-rank.
    """
    chosen = select_levels(embedded, recipe, levels) if levels else embedded
    chosen = chosen if prefix is None else select_prefix(chosen, prefix)
    if expand is None and rerank is None:
        return evaluate(evaluator, chosen)
    if not isinstance(evaluator, RerankingEvaluator):
        raise DmlError(f"{type(evaluator).__name__} can't expand queries or re-rank; use 'exact'")
    with convert_errors("evaluate"):
        if expand is not None:
            expanded = evaluator.expand(chosen.embeddings, chosen.gallery, **expand)
            chosen = replace(chosen, embeddings=expanded)
        if rerank is None:
            return evaluate(evaluator, chosen)
        return evaluator.evaluate_reranked(*chosen.arguments(), **rerank)


def check_prefixes(prefixes: Sequence[int], dim: int) -> None:
    """Raise DmlError unless all prefixes are in [1, dim]."""
    for prefix in prefixes:
        if not 1 <= prefix <= dim:
            raise DmlError(
                f"the prefix is {prefix}; expected 1 to {dim}, the dimension of the embedding"
            )


def evaluate_prefixes_on_ranks(
    ranks: Ranks, evaluator: Evaluator, embedded: Embedded, prefixes: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """Evaluate prefixes of an embedding on ranks; return the metrics by prefix, in JSON's types."""
    return {
        str(prefix): evaluate_on_ranks(ranks, evaluator, select_prefix(embedded, prefix)).metrics
        for prefix in prefixes
    }

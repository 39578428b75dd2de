"""Retrieval metrics for embeddings and binary codes.

Shapes: `Q` queries, `G` gallery, `D` dim, `W` bytes per code.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict, TypeVar, Unpack, cast

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.clustering import MAX_ITER, agreement, check_clusters
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import (
    COSINE,
    TIES,
    UNMATCHED,
    Progress,
    Sides,
    Similarity,
    Ties,
    Unmatched,
)
from dml_eval_rs.matches.labels import Labels
from dml_eval_rs.matches.relation import Relation, relate
from dml_eval_rs.matches.relevance import Relevance
from dml_eval_rs.metrics.evaluation import Evaluation
from dml_eval_rs.metrics.names import DEFAULT, METRICS, check_metrics, family_of
from dml_eval_rs.peers import Peers, check_alike

LabelsLike = npt.ArrayLike | Labels
Matches = npt.ArrayLike | Labels | Relevance
Level = TypeVar("Level", bound=Hashable)
# For each metric, the name, the per-query values and the mean; then the number of unmatched
# queries.
Columns = tuple[list[tuple[str, npt.NDArray[np.float64], float]], int]

_NAMES = ("embeddings", "gallery")
_UNNAMED = ["mrr"]  # the core must measure a metric, even if only clustering metrics are requested


class CommonOptions(TypedDict, total=False):
    """Options that all functions share, see `evaluate`."""

    metrics: str | Iterable[str]
    similarity: Similarity
    unmatched: Unmatched
    exclude: npt.ArrayLike | None
    n_clusters: int | None
    seed: int
    threads: int | None
    progress: Progress | None
    peers: Peers | None


class Options(CommonOptions, total=False):
    """The options of `evaluate`."""

    ties: Ties


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOptions:
    """Checked options, to be passed to the core."""

    names: list[str]  # all metrics, in the requested order
    metrics: list[str]  # retrieval metrics, measured by the core
    clustering: list[str]  # clustering metrics
    similarity: str
    ties: list[str]  # rules; the core returns an evaluation per rule
    zero_unmatched: bool  # whether an unmatched query counts as a miss
    n_clusters: int | None
    seed: int
    threads: int | None
    exclude: npt.ArrayLike | None = None
    progress: Progress | None = None
    peers: Peers | None = None


def check_options(
    *,
    metrics: str | Iterable[str] = DEFAULT,
    similarity: str = COSINE,
    ties: str = "index",
    unmatched: str = "skip",
    n_clusters: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    peers: Peers | None = None,
    **unchecked: Any,
) -> CheckedOptions:
    """Check the options of `evaluate`."""
    names = check_metrics(metrics)
    kinds = {name: METRICS[str(family_of(name))].kind for name in names}
    clustering = [name for name in names if kinds[name] == "clustering"]
    if n_clusters is not None and not clustering:
        came = f"n_clusters is {n_clusters}, but no clustering metric is requested"
        raise ValueError(f"{came}; expected metrics with 'nmi', 'ami' or 'ari', or no n_clusters")
    return CheckedOptions(
        names=names,
        metrics=[name for name in names if kinds[name] == "retrieval"] or _UNNAMED,
        clustering=clustering,
        similarity=arguments.one_of(similarity, "similarity", arguments.SIMILARITIES),
        ties=[arguments.one_of(ties, "ties", TIES)],
        zero_unmatched=arguments.one_of(unmatched, "unmatched", UNMATCHED) == "zero",
        n_clusters=n_clusters,
        seed=arguments.seed(seed),
        threads=arguments.threads(getattr(peers, "threads", None) if threads is None else threads),
        peers=peers,
        **unchecked,
    )


def evaluate(
    embeddings: npt.ArrayLike,
    labels: Matches,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: LabelsLike | None = None,
    *,
    metrics: str | Iterable[str] = DEFAULT,
    similarity: Similarity = COSINE,
    ties: Ties = "index",
    unmatched: Unmatched = "skip",
    exclude: npt.ArrayLike | None = None,
    n_clusters: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress | None = None,
    peers: Peers | None = None,
) -> Evaluation:
    """Measure retrieval metrics exactly, per query and on average, and optionally how well clusters
    agree with labels.

    The rank of a match is 1 + the number of gallery items ranked higher. For how metrics are
    computed from ranks, see docs/reference/metrics.md in the repository. Comparisons have the
    result of float64 arithmetic in a documented order. They do not depend on the machine or the
    number of threads.

    Args:
        embeddings: (Q, D) float16, float32 or float64, finite, or if ``similarity="hamming"`` (Q,
            W) uint8 codes of up to 65,536 bits, see `binarize`. Rows need not be contiguous,
            normalised or in memory (use `load_array`). int8 or, if another similarity is given,
            uint8 vectors, tensors, columns and blocks can also be used, see
            docs/reference/arrays.md.
        labels: (Q,) integers of any width, booleans or strings. An item matches a query if the
            labels are equal. Use `Labels` if items have groups or should be excluded, and
            `Relevance` to list the matches per query.
        gallery: (G, D) or (G, W). By default, queries search the other queries. When a gallery is
            given, use `exclude` if items should be excluded.
        gallery_labels: (G,), of the same kind as `labels`, or `Labels`. Must be given if and only
            if `gallery` is given, but not with a `Relevance`.
        metrics: names: ``recall@K``, ``precision@K``, ``r_precision``, ``map@r``, ``mrr``,
            ``mrr@K``, ``map`` and ``map@K`` (average precision), ``ndcg@K``, ``ir_recall@K``,
            ``minp``, and for k-means clusters of all items ``nmi``, ``nmi_min``, ``nmi_geometric``,
            ``nmi_max``, ``ami``, ``ari``. K can exceed the gallery's size.
        similarity: ``"cosine"`` (default), ``"dot"``, ``"euclidean"`` (nearest is most similar), or
            ``"hamming"``.
        ties: how to order equally similar items. Default ``"index"``: lower index first;
            ``"optimistic"``: matches first; ``"pessimistic"``: non-matches first; ``"expected"``:
            take the mean of a metric over all orders of tied items. Note that codes often tie.
        unmatched: by default ``"skip"`` queries without a match (set values to NaN, and exclude NaN
            from means), or count these queries as ``"zero"``.
        exclude: (Q,) gallery index that should not be ranked, per query, usually the query itself,
            or -1 for none.
        n_clusters: number of clusters. Default: the number of distinct labels.
        seed: seed for the clustering, 0 (default) to 2**64 - 1.
        threads: number of threads. Default: `RAYON_NUM_THREADS`, or all available cores.
        progress: called as ``progress(done, total)``, in compared pairs, a few times per second.
            The total grows when clustering begins.
        peers: processes that share the work. All must pass identical arrays, and get the result of
            a single process.

    Returns:
        A mapping from metrics to means, in the requested order. Unmatched queries are excluded from
        means, or count as 0 if ``unmatched="zero"``.

    Raises:
        TypeError: if an array is of the wrong dtype, such as integers for embeddings or floats for
            labels.
        ValueError: if shapes do not match or are empty, a number is not finite (the message names
            the first such row), the similarity is cosine but a row is all zeros, a metric is
            unknown, an argument is out of range, no query has a match, or the peers' arrays differ.
        KeyboardInterrupt: if Ctrl-C is pressed, within a second.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import evaluate
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> result = evaluate(x, ["cat", "cat", "dog", "dog", "dog"], metrics=("recall@1", "map@r"))
        >>> dict(result)
        {'recall@1': 0.8, 'map@r': 0.8}
        >>> result.per_query["recall@1"].tolist()
        [1.0, 1.0, 1.0, 1.0, 0.0]
    """
    options = check_options(
        metrics=metrics, similarity=similarity, ties=ties, unmatched=unmatched, exclude=exclude,
        n_clusters=n_clusters, seed=seed, threads=threads, progress=progress, peers=peers,
    )  # fmt: skip
    return measure(embeddings, labels, gallery, gallery_labels, options)[0]


def evaluate_levels(
    embeddings: npt.ArrayLike,
    labels: Mapping[Level, LabelsLike],
    gallery: npt.ArrayLike | None = None,
    gallery_labels: Mapping[Level, LabelsLike] | None = None,
    **options: Unpack[Options],
) -> dict[Level, Evaluation]:
    """Measure metrics for different levels of labels, such as species and genus; return level →
    evaluation.

    The results equal separate calls, bit by bit: ``evaluate_levels(x, labels)[name] == evaluate(x,
    labels[name])``. Embeddings are read and checked only once. Levels need not be nested.

    Args:
        embeddings, gallery: see `evaluate`.
        labels: level → (Q,) labels, or `Labels` without junk; for a (Q, L) array use
            ``dict(enumerate(array.T))``.
        gallery_labels: level → (G,) labels, for the same levels. Must be given if and only if
            `gallery` is given.
        options: options of `evaluate`, with only retrieval metrics. The total of ``progress`` grows
            with each level.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `evaluate`, naming the level, or if levels are
            not given, or `gallery_labels` and `labels` contain different levels.
    """
    checked = check_options(**options)
    _check_levels(labels, gallery_labels)
    check_retrieval_only(checked)
    sides = arguments.to_sides(embeddings, gallery, checked.similarity, _NAMES)
    relations = []
    for name, labels_Q in labels.items():
        labels_G = None if gallery_labels is None else gallery_labels[name]
        try:
            relations.append(_relate(labels_Q, labels_G, sides, checked))
        except (TypeError, ValueError) as error:
            raise type(error)(f"level {name!r}: {error}") from error
        if relations[-1].kept is not None:
            raise ValueError(
                f"level {name!r} has junk; expected none: drop the rows, or use evaluate"
            )
    found = dict(zip(labels, _count(sides, relations, checked), strict=True))
    for name, level in found.items():
        if not checked.zero_unmatched and level.n_unmatched == level.n_queries:
            raise ValueError(f"level {name!r}: {describe_no_match(level.n_queries)}")
    return found


def evaluate_ties(
    embeddings: npt.ArrayLike,
    labels: Matches,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: LabelsLike | None = None,
    *,
    ties: Iterable[Ties] = TIES,
    **options: Unpack[CommonOptions],
) -> dict[Ties, Evaluation]:
    """Measure metrics under different rules for ties, in the given order; return rule → evaluation.

    The results equal separate calls, bit by bit:
    ``evaluate_ties(x, y)[rule] == evaluate(x, y, ties=rule)``. Use ``"optimistic"`` and
    ``"pessimistic"`` to bound metrics over all orders of tied items, but not nDCG with grades,
    which also depends on the order of tied matches.

    Args:
        embeddings, labels, gallery, gallery_labels: see `evaluate`.
        ties: distinct rules, see `evaluate`.
        options: options of `evaluate`, with only retrieval metrics.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `evaluate`, or if `ties` is a string or empty,
            or repeats a rule.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import evaluate_ties
        >>> codes = np.zeros((3, 1), np.uint8)
        >>> found = evaluate_ties(codes, [0, 1, 0], similarity="hamming", metrics="recall@1")
        >>> {rule: evaluation["recall@1"] for rule, evaluation in found.items()}
        {'index': 0.5, 'optimistic': 1.0, 'pessimistic': 0.0, 'expected': 0.5}
    """
    if isinstance(ties, str) or not isinstance(ties, Iterable):
        raise TypeError(
            f"ties is {ties!r}; expected a sequence of rules: use evaluate for a single rule"
        )
    rules = [arguments.one_of(rule, "ties", TIES) for rule in ties]
    if not rules:
        raise ValueError(f"ties is empty; expected at least one of {', '.join(TIES)}")
    if len(set(rules)) < len(rules):
        raise ValueError(f"ties is {rules}; expected distinct rules")
    checked = replace(check_options(**options), ties=rules)
    check_retrieval_only(checked)
    found = measure(embeddings, labels, gallery, gallery_labels, checked)
    return dict(zip(cast("list[Ties]", rules), found, strict=True))


def measure(
    embeddings: npt.ArrayLike,
    labels: Matches,
    gallery: npt.ArrayLike | None,
    gallery_labels: LabelsLike | None,
    options: CheckedOptions,
    bits: int | None = None,
) -> list[Evaluation]:
    """Measure metrics like `evaluate`, under the given rules for ties; codes use `bits` bits, by
    default 8 per byte.
    """
    sides = arguments.to_sides(embeddings, gallery, options.similarity, _NAMES)
    relation = _relate(labels, gallery_labels, sides, options)
    if not options.clustering:
        return _count(sides, [relation], options)
    parts = _labelled_parts(sides, relation, labels, gallery_labels)
    if options.n_clusters is not None:
        check_clusters(options.n_clusters, sum(len(rows) for rows, _ in parts))
    progress: Any = options.progress
    ranked = 0  # pairs compared before the clustering

    def report(done: int, total: int) -> None:
        nonlocal ranked
        ranked = total
        progress(done, total)

    (found,) = _count(sides, [relation], replace(options, progress=progress and report))
    rows, codes = zip(*parts)
    (code_N,) = arguments.encode(np.concatenate(codes))
    clusters_N, _, _, _ = _native.kmeans(
        rows[0],
        int(code_N.max()) + 1 if options.n_clusters is None else options.n_clusters,
        seed=options.seed,
        n_init=1,
        max_iter=MAX_ITER,
        more=rows[1] if len(rows) > 1 else None,
        unit=options.similarity == "cosine",
        bits=0
        if options.similarity != "hamming"
        else 8 * sides.queries.shape[1]
        if bits is None
        else bits,
        threads=options.threads,
        progress=progress and (lambda done, total: progress(ranked + done, ranked + total)),
        peers=options.peers,
    )
    values = {**found, **{name: agreement(name, code_N, clusters_N) for name in options.clustering}}
    return [replace(found, _values={name: values[name] for name in options.names})]


def _relate(
    labels: object, gallery_labels: object, sides: Sides, options: CheckedOptions
) -> Relation:
    relation = relate(labels, gallery_labels, sides, _NAMES, exclude=options.exclude)
    excluding = relation.exclude, relation.groups, relation.ignored_offsets
    arguments.warn_of_own_gallery(sides, _NAMES, excluding)
    return relation


def _count(sides: Sides, relations: list[Relation], options: CheckedOptions) -> list[Evaluation]:
    """Use the core to measure metrics, per relation or per rule for ties."""
    if options.peers is not None:
        names = "similarity", "names", "ties", "zero_unmatched", "n_clusters", "seed"
        arrays = [array for relation in relations for array in relation.arrays()]
        compared = [getattr(options, name) for name in names]
        check_alike(options.peers, compared, sides.queries, sides.gallery, *arrays)
    found = _native.evaluate(sides.queries, sides.gallery, relations, options)
    kept = relations[0].kept if sides.gallery is None else None
    return [
        to_evaluation(columns, options, len(sides.queries), len(sides.items), kept)
        for columns in found
    ]


def to_evaluation(
    columns: Columns,
    options: CheckedOptions,
    n_queries: int,
    n_gallery: int,
    kept: npt.NDArray[np.uintp] | None,
) -> Evaluation:
    """Build the result from the core's columns. If `kept` is given, queries that are not in it get
    NaN.
    """
    measured, n_unmatched = columns
    asked = [column for column in measured if column[0] in options.names]
    per_query = {name: values_Q for name, values_Q, _ in asked}
    if kept is not None:
        n_unmatched += n_queries - len(kept)
        for name, values_q in per_query.items():
            per_query[name] = np.full(n_queries, np.nan)
            per_query[name][kept] = values_q
    return Evaluation(
        {name: mean for name, _, mean in asked}, per_query, n_queries, n_unmatched, n_gallery
    )


def _labelled_parts(
    sides: Sides, relation: Relation, labels: Matches, gallery_labels: LabelsLike | None
) -> list[tuple[npt.NDArray[np.generic], npt.NDArray[np.uint32]]]:
    """Return the rows to be clustered, excluding junk, and the labels."""
    given = [labels, gallery_labels]
    if relation.labels is None or any(
        isinstance(of, Labels) and len(of.distractors) for of in given
    ):
        raise ValueError(
            "clustering metrics need all labels; expected no distractors and no Relevance"
        )
    sides = sides.keep(relation.kept)
    if sides.gallery is None or relation.gallery_labels is None:
        return [(sides.queries, relation.labels)]
    return [(sides.queries, relation.labels), (sides.gallery, relation.gallery_labels)]


def describe_no_match(n_queries: int) -> str:
    """Return the error message to be used when none of the queries has a match."""
    return (
        f"none of the {n_queries} queries has a match in the gallery; expected a label that occurs "
        "twice, or in queries and gallery, and in different groups if labels have groups"
    )


def check_retrieval_only(options: CheckedOptions) -> None:
    """Raise a ValueError if a clustering metric is requested."""
    if options.clustering:
        name = options.clustering[0]
        raise ValueError(
            f"metrics contains {name!r}; expected retrieval metrics: use evaluate to measure it"
        )


def _check_levels(labels: object, gallery_labels: object) -> None:
    for name, levels in {"labels": labels, "gallery_labels": gallery_labels}.items():
        if levels is None and name == "gallery_labels":
            continue
        if not isinstance(levels, Mapping):
            raise TypeError(
                f"{name} is a {type(levels).__name__}; expected a mapping from level to labels, "
                "such as {'superclass': ..., 'class': ...}"
            )
        if not levels:
            raise ValueError(f"{name} is empty; expected at least one level")
        if isinstance(labels, Mapping) and set(levels) != set(labels):
            raise ValueError(
                f"{name} has levels {[*levels]}; expected {[*labels]}, the levels of labels"
            )

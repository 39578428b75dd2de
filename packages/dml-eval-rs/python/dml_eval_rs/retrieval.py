"""Retrieval metrics of embeddings and of binary codes.

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
from dml_eval_rs.inputs.arguments import TIES, UNMATCHED, Progress, Sides, Similarity, Ties, Unmatched
from dml_eval_rs.matches.labels import Labels
from dml_eval_rs.matches.relation import Relation, relate
from dml_eval_rs.matches.relevance import Relevance
from dml_eval_rs.metrics.evaluation import Evaluation
from dml_eval_rs.metrics.names import DEFAULT, METRICS, check_metrics, family_of
from dml_eval_rs.peers import Peers, check_alike

LabelsLike = npt.ArrayLike | Labels
Matches = npt.ArrayLike | Labels | Relevance
Level = TypeVar("Level", bound=Hashable)
# Each metric's name, values per query and mean; and the number of queries without a match.
Columns = tuple[list[tuple[str, npt.NDArray[np.float64], float]], int]

_NAMES = ("embeddings", "gallery")
_UNNAMED = ["mrr"]  # what the core measures if only metrics of clusters are asked


class CommonOptions(TypedDict, total=False):
    """The options that all functions of evaluation share, see `evaluate`."""

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
    """The options of one rule for ties, see `evaluate`."""

    ties: Ties


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOptions:
    """Checked options, as the core takes them."""

    names: list[str]  # of all metrics, in the order asked
    metrics: list[str]  # those of retrieval, which the core measures
    clustering: list[str]  # those of clusters
    similarity: str
    ties: list[str]  # the rules, one evaluation for each
    zero_unmatched: bool  # whether a query without a match counts as a miss
    n_clusters: int | None
    seed: int
    threads: int | None
    exclude: npt.ArrayLike | None = None
    progress: Progress | None = None
    peers: Peers | None = None


def check_options(
    *,
    metrics: str | Iterable[str] = DEFAULT,
    similarity: str = "cosine",
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
        raise ValueError(
            f"n_clusters is {n_clusters}, but no metric of clusters is asked; expected metrics with 'nmi', 'ami' or "
            "'ari', or no n_clusters"
        )
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
    similarity: Similarity = "cosine",
    ties: Ties = "index",
    unmatched: Unmatched = "skip",
    exclude: npt.ArrayLike | None = None,
    n_clusters: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress | None = None,
    peers: Peers | None = None,
) -> Evaluation:
    """Measure retrieval metrics exactly, per query and on average, and on request the agreement of clusters and labels.

    A match's rank is 1 + the number of other gallery items before it. docs/reference/metrics.md of the repository
    defines all metrics by these ranks. Every comparison has the result of float64 arithmetic in one stated order, on
    every machine and for any number of threads.

    Args:
        embeddings: (Q, D) float16, float32 or float64, finite, or with ``similarity="hamming"`` (Q, W) uint8 codes of
            at most 65,536 bits, see `binarize`. Rows need not be contiguous, normalised or in memory (`numpy.memmap`).
            Tensors, columns and blocks are taken, too: docs/reference/arrays.md.
        labels: (Q,) integers of any width, booleans or strings. An item matches a query if both have the same label.
            Use `Labels` if items also have groups, or if some must be excluded, and `Relevance` to list each query's
            matches.
        gallery: (G, D) or (G, W). If None, the queries search one another, and each excludes itself by its index. With
            a gallery nothing is excluded, unless `exclude` says so.
        gallery_labels: (G,), of the labels' kind, or `Labels`. Pass them if and only if there is a gallery, and no
            `Relevance`.
        metrics: names: ``recall@K``, ``precision@K``, ``r_precision``, ``map@r``, ``mrr``, ``mrr@K``, ``map`` and
            ``map@K`` (average precision), ``ndcg@K``, ``ir_recall@K``, ``minp``, and, of k-means clusters of all items,
            ``nmi``, ``nmi_min``, ``nmi_geometric``, ``nmi_max``, ``ami``, ``ari``. A K beyond the gallery means all of
            it.
        similarity: ``"cosine"``, ``"dot"``, ``"euclidean"`` (the nearest is the most similar), or ``"hamming"``.
        ties: the order of equally similar items. ``"index"``: lower gallery index first; ``"optimistic"``: matches
            first; ``"pessimistic"``: non-matches first; ``"expected"``: every metric is its mean over all orders of
            tied items. Ties are frequent among codes.
        unmatched: ``"skip"`` queries without a match (their values are NaN, and no mean includes them), or count them
            as ``"zero"``.
        exclude: (Q,) the index of each query in the gallery, to exclude it from its own ranking; -1 for queries
            outside.
        n_clusters: number of clusters; None for the number of distinct labels.
        seed: seed of the clustering, 0 to 2**64 - 1.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.
        progress: called as ``progress(done, total)``, in pairs compared, several times a second. The total grows when a
            clustering begins.
        peers: processes that share the work. All make this call with the same arrays, and all get the bits of a single
            process.

    Returns:
        A mapping of the metrics, in the order asked. Means are over the queries with a match (with
        ``unmatched="zero"`` over all).

    Raises:
        TypeError: if an array has the wrong dtype, such as integers for embeddings or floats for labels.
        ValueError: if shapes don't match or are empty, a number isn't finite (the message names the first such row), a
            row is all zeros under the cosine, a metric is unknown, an argument is out of range, no query has a match,
            or the peers' arrays differ.
        KeyboardInterrupt: within a second of Ctrl-C.

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
    """Measure metrics with each level's labels, such as species and genus, in one pass; return level → evaluation.

    Each level has the bits of its own call: ``evaluate_levels(x, labels)[name] == evaluate(x, labels[name])``. Levels
    need not be nested. One pass takes less time than the calls unless a level has classes so large that all keys of its
    queries are computed: docs/reference/metrics.md of the repository has figures.

    Args:
        embeddings: (Q, D) or (Q, W), as in `evaluate`.
        labels: a level's name → (Q,) labels, or `Labels` without junk; of an array (Q, L) ``dict(enumerate(array.T))``.
        gallery: (G, D) or (G, W); None if the queries search one another.
        gallery_labels: the same levels' names → (G,) labels. Pass them if and only if there is a gallery.
        options: as in `evaluate`, with metrics of retrieval only.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `evaluate`, naming the level.
        ValueError: if there is no level, or both sides have different ones.
    """
    checked = check_options(**options)
    _check_levels(labels, gallery_labels)
    _refuse_clusters(checked)
    sides = arguments.to_sides(embeddings, gallery, checked.similarity, _NAMES)
    relations = []
    for name, labels_Q in labels.items():
        labels_G = None if gallery_labels is None else gallery_labels[name]
        try:
            relations.append(_relate(labels_Q, labels_G, sides, checked))
        except (TypeError, ValueError) as error:
            raise type(error)(f"level {name!r}: {error}") from error
        if relations[-1].kept is not None:
            raise ValueError(f"level {name!r} has junk; expected none: drop the rows, or evaluate it alone")
    found = dict(zip(labels, _count(sides, relations, checked), strict=True))
    for name, level in found.items():
        if not checked.zero_unmatched and level.n_unmatched == level.n_queries:
            raise ValueError(
                f"level {name!r}: none of the {level.n_queries} queries has a match in the gallery; expected a label "
                "that occurs twice, or on both sides"
            )
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
    """Measure metrics under several rules for ties, from one count; return rule → evaluation, in the order given.

    Each rule has the bits of its own call: ``evaluate_ties(x, y)[rule] == evaluate(x, y, ties=rule)``. ``"optimistic"``
    and ``"pessimistic"`` bound every metric under any order of ties, but nDCG of grades, which depends on the order of
    tied matches, too.

    Args:
        embeddings, labels, gallery, gallery_labels: as in `evaluate`.
        ties: the rules, each once; see `evaluate`.
        options: the others as in `evaluate`, with metrics of retrieval only.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `evaluate`, or if `ties` isn't several distinct rules.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import evaluate_ties
        >>> codes = np.zeros((3, 1), np.uint8)
        >>> found = evaluate_ties(codes, [0, 1, 0], similarity="hamming", metrics="recall@1")
        >>> {rule: evaluation["recall@1"] for rule, evaluation in found.items()}
        {'index': 0.5, 'optimistic': 1.0, 'pessimistic': 0.0, 'expected': 0.5}
    """
    if isinstance(ties, str) or not isinstance(ties, Iterable):
        raise TypeError(f"ties is {ties!r}; expected several rules: evaluate takes one")
    rules = [arguments.one_of(rule, "ties", TIES) for rule in ties]
    if not rules:
        raise ValueError(f"ties is empty; expected at least one rule of {', '.join(TIES)}")
    if len(set(rules)) < len(rules):
        raise ValueError(f"ties is {rules}; expected each rule once")
    checked = replace(check_options(**options), ties=rules)
    _refuse_clusters(checked)
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
    """Measure metrics as `evaluate` does, under each rule for ties; `bits` are those of a code, if not all in use."""
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
        bits=0 if options.similarity != "hamming" else 8 * sides.queries.shape[1] if bits is None else bits,
        threads=options.threads,
        progress=progress and (lambda done, total: progress(ranked + done, ranked + total)),
        peers=options.peers,
    )
    of_clusters = {name: agreement(name, code_N, clusters_N) for name in options.clustering}
    return [replace(found, _values={name: {**found, **of_clusters}[name] for name in options.names})]


def _relate(labels: object, gallery_labels: object, sides: Sides, options: CheckedOptions) -> Relation:
    unmatched = "zero" if options.zero_unmatched else "skip"
    relation = relate(labels, gallery_labels, sides, _NAMES, exclude=options.exclude, unmatched=unmatched)
    arguments.warn_of_own_gallery(
        sides, _NAMES, (relation.exclude, relation.groups, relation.ignored_offsets)
    )
    return relation


def _count(sides: Sides, relations: list[Relation], options: CheckedOptions) -> list[Evaluation]:
    """Measure metrics by the core: for each relation, or each rule for ties."""
    if options.peers is not None:
        names = "similarity", "names", "ties", "zero_unmatched", "n_clusters", "seed"
        arrays = [array for relation in relations for array in relation.arrays()]
        compared = [getattr(options, name) for name in names]
        check_alike(options.peers, compared, sides.queries, sides.gallery, *arrays)
    found = _native.evaluate(sides.queries, sides.gallery, relations, options)
    kept = relations[0].kept if sides.gallery is None else None
    return [to_evaluation(columns, options, len(sides.queries), len(sides.items), kept) for columns in found]


def to_evaluation(
    columns: Columns,
    options: CheckedOptions,
    n_queries: int,
    n_gallery: int,
    kept: npt.NDArray[np.uintp] | None,
) -> Evaluation:
    """Build the result from the core's columns; `kept` are the measured queries, if not all. The others have NaN."""
    measured, n_unmatched = columns
    asked = [column for column in measured if column[0] in options.names]
    per_query = {name: values_Q for name, values_Q, _ in asked}
    if kept is not None:
        n_unmatched += n_queries - len(kept)
        for name, values_q in per_query.items():
            per_query[name] = np.full(n_queries, np.nan)
            per_query[name][kept] = values_q
    return Evaluation({name: mean for name, _, mean in asked}, per_query, n_queries, n_unmatched, n_gallery)


def _labelled_parts(
    sides: Sides, relation: Relation, labels: Matches, gallery_labels: LabelsLike | None
) -> list[tuple[npt.NDArray[np.generic], npt.NDArray[np.uint32]]]:
    """Return the rows to cluster, without junk, and their labels."""
    given = [labels, gallery_labels]
    if relation.labels is None or any(isinstance(of, Labels) and len(of.distractors) for of in given):
        raise ValueError(
            "metrics of clusters compare clusters with the labels of all items; expected labels without distractors, "
            "instead of a Relevance"
        )
    sides = sides.keep(relation.kept)
    if sides.gallery is None or relation.gallery_labels is None:
        return [(sides.queries, relation.labels)]
    return [(sides.queries, relation.labels), (sides.gallery, relation.gallery_labels)]


def _refuse_clusters(options: CheckedOptions) -> None:
    if options.clustering:
        raise ValueError(
            f"metrics holds {options.clustering[0]!r}, which evaluate measures alone; expected metrics of retrieval"
        )


def _check_levels(labels: object, gallery_labels: object) -> None:
    sides = (
        {"labels": labels} if gallery_labels is None else {"labels": labels, "gallery_labels": gallery_labels}
    )
    for name, levels in sides.items():
        if not isinstance(levels, Mapping):
            raise TypeError(
                f"{name} is a {type(levels).__name__}; expected a mapping of each level's name to its labels, such as "
                "{'superclass': ..., 'class': ...}"
            )
        if not levels:
            raise ValueError(f"{name} has no level; expected at least one name with its labels")
        if isinstance(labels, Mapping) and set(levels) != set(labels):
            raise ValueError(f"{name} has the levels {[*levels]}; expected those of labels, {[*labels]}")

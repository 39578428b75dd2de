"""Retrieval metrics at several levels of labels, such as superclass and class.

Shapes: `Q` queries, `G` gallery, `D` dim.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Literal, TypeVar

import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.evaluation import Evaluation
from dml_eval_rs.metric_names import evaluation_of, metric_names
from dml_eval_rs.peers import Peers, check_alike
from dml_eval_rs.relation import Lists, Relation, relate
from dml_eval_rs.retrieval import SIMILARITIES, TIES, UNMATCHED, Progress, Ties, Unmatched

Level = TypeVar("Level", bound=Hashable)


def evaluate_levels(
    embeddings: npt.ArrayLike,
    labels: Mapping[Level, npt.ArrayLike],
    gallery: npt.ArrayLike | None = None,
    gallery_labels: Mapping[Level, npt.ArrayLike] | None = None,
    *,
    groups: npt.ArrayLike | None = None,
    gallery_groups: npt.ArrayLike | None = None,
    ignored: Lists | None = None,
    indices: npt.ArrayLike | None = None,
    unmatched: Unmatched = "skip",
    similarity: Literal["cosine", "dot", "euclidean", "hamming"] = "cosine",
    recall_at: Iterable[int] = (1, 10, 100, 1000),
    precision_at: Iterable[int] = (),
    average_precision_at: Iterable[int] = (),
    ndcg_at: Iterable[int] = (),
    recall_share_at: Iterable[int] = (),
    reciprocal_rank_at: Iterable[int] = (),
    average_precision: bool = False,
    ties: Ties = "index",
    threads: int | None = None,
    progress: Progress | None = None,
    peers: Peers | None = None,
) -> dict[Level, Evaluation]:
    """Measure the metrics of `evaluate`, or `evaluate_codes`, with each level's labels, in one pass over the pairs.

    Each level has the bits of its own call: ``evaluate_levels(x, labels)[name] == evaluate(x, labels[name])``. Levels
    need not be nested. One pass takes less time than the calls unless a level has classes so large that all keys of its
    queries are computed: docs/reference/metrics.md of the repository has figures.

    Args:
        embeddings: (Q, D) as in `evaluate`; with ``similarity="hamming"`` (Q, W) uint8 as in `evaluate_codes`.
        labels: a level's name → (Q,) labels, as in `evaluate`; of an array (Q, L) ``dict(enumerate(array.T))``.
        gallery: (G, D), or (G, W); None: the queries are their own gallery.
        gallery_labels: the same levels' names → (G,) labels. Given if and only if `gallery` is.
        groups, gallery_groups: as in `evaluate`, at each level: items of a query's group and its label there are left
            out.
        ignored, indices, unmatched: as in `evaluate`.
        similarity: ``"cosine"``, ``"dot"``, ``"euclidean"`` or ``"hamming"``.
        recall_at, precision_at, average_precision_at, ndcg_at, recall_share_at, reciprocal_rank_at: as in `evaluate`.
        average_precision, ties, threads, progress: as in `evaluate`.
        peers: as in `evaluate`; they share the work of one level after another.

    Returns:
        Each level's name → its evaluation; `nmi`, `ami` and `ari` are None.

    Raises:
        TypeError: as `evaluate`, or if labels are no mapping.
        ValueError: as `evaluate`, naming the level; or if there is no level, or both sides have different ones.
        KeyboardInterrupt: within a second of Ctrl-C.
    """
    arguments.one_of(similarity, "similarity", (*SIMILARITIES, "hamming"))
    arguments.one_of(ties, "ties", TIES)
    arguments.one_of(unmatched, "unmatched", UNMATCHED)
    metrics = metric_names(
        recall_at,
        precision_at,
        average_precision_at,
        ndcg_at,
        average_precision,
        recall_share_at,
        reciprocal_rank_at,
    )
    checked_threads = arguments.threads(threads)
    _check_levels(labels, gallery, gallery_labels)
    are_codes = similarity == "hamming"
    queries, items = arguments.both_sides(embeddings, "embeddings", gallery, "gallery", are_codes=are_codes)
    arguments.warn_of_own_gallery(queries, items, "embeddings", "gallery", (indices, groups, ignored))
    relations: list[Relation] = []
    for name, labels_Q in labels.items():
        try:
            relation = relate(
                queries,
                "embeddings",
                labels_Q,
                items,
                "gallery",
                None if gallery_labels is None else gallery_labels[name],
                groups=groups,
                gallery_groups=gallery_groups,
                relevant=None,
                ignored=ignored,
                indices=indices,
                junk=(),
                distractors=(),
                unmatched=unmatched,
            )
        except (TypeError, ValueError) as error:
            raise type(error)(f"level {name!r}: {error}") from error
        relations.append(relation)
    arrays = [array for relation in relations for array in relation.arrays()]
    check_alike(peers, (similarity, metrics, ties, unmatched, list(labels)), queries, items, *arrays)
    found = _native.evaluate_levels(
        queries,
        items,
        relations,
        similarity=similarity,
        metrics=metrics,
        ties=ties,
        zero_unmatched=unmatched == "zero",
        threads=checked_threads,
        progress=progress,
        peers=peers,
    )
    n_gallery = len(queries if items is None else items)
    levels = {name: evaluation_of(level, n_gallery) for name, level in zip(labels, found, strict=True)}
    for name, level in levels.items():
        if unmatched == "skip" and level.n_unmatched == len(queries):
            raise ValueError(
                f"level {name!r}: none of the {len(queries)} queries has a match in the gallery; expected a label "
                "that occurs twice, or on both sides"
            )
    return levels


def _check_levels(labels: object, gallery: object, gallery_labels: object) -> None:
    if not isinstance(labels, Mapping):
        raise TypeError(
            f"labels is a {type(labels).__name__}; expected a mapping of each level's name to its labels, such as "
            "{'superclass': ..., 'class': ...}"
        )
    if not labels:
        raise ValueError("labels has no level; expected at least one name with its labels")
    if (gallery is None) != (gallery_labels is None):
        given, missing = (
            ("gallery", "gallery_labels") if gallery_labels is None else ("gallery_labels", "gallery")
        )
        raise ValueError(
            f"{given} came without {missing}; expected both, or neither to make the queries their own gallery"
        )
    if gallery_labels is None:
        return
    if not isinstance(gallery_labels, Mapping):
        raise TypeError(f"gallery_labels is a {type(gallery_labels).__name__}; expected a mapping, as labels")
    if set(gallery_labels) != set(labels):
        raise ValueError(
            f"gallery_labels has the levels {list(gallery_labels)}; expected those of labels, {list(labels)}"
        )

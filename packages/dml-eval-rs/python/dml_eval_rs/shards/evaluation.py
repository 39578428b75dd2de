"""Retrieval metrics of embeddings in shards."""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.digests import bytes_of
from dml_eval_rs.evaluation import Evaluation
from dml_eval_rs.metric_names import evaluation_of, metric_names
from dml_eval_rs.relation import GradedLists, Lists, Relation, relate
from dml_eval_rs.retrieval import (
    SIMILARITIES,
    TIES,
    UNMATCHED,
    Progress,
    Ties,
    Unmatched,
    check_labels_of_gallery,
)
from dml_eval_rs.shards.counting import Counting
from dml_eval_rs.shards.describing import describe_shards
from dml_eval_rs.shards.gallery import Side, default_block
from dml_eval_rs.shards.running import Map
from dml_eval_rs.shards.sources import Shard, Source
from dml_eval_rs.shards.tasks import Options

_REFUSED = {
    "nmi": "it clusters all embeddings in one process: call evaluate(..., nmi=True) on a sample, or kmeans",
    "nmi_average": "nmi clusters all embeddings in one process: call evaluate on a sample, or kmeans",
    "n_clusters": "nmi clusters all embeddings in one process: call evaluate on a sample, or kmeans",
    "seed": "nmi clusters all embeddings in one process: call evaluate on a sample, or kmeans",
    "peers": "map divides the work: pass a map over the ranks, as in docs/guide/shards.md of the repository",
}


def evaluate_shards(
    shards: Sequence[Source],
    labels: npt.ArrayLike | None = None,
    gallery: Sequence[Source] | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    *,
    map: Map = builtins.map,
    block: int | None = None,
    groups: npt.ArrayLike | None = None,
    gallery_groups: npt.ArrayLike | None = None,
    relevant: Lists | GradedLists | None = None,
    ignored: Lists | None = None,
    indices: npt.ArrayLike | None = None,
    junk: npt.ArrayLike = (),
    distractors: npt.ArrayLike = (),
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
    threads: int | None = 1,
    progress: Progress | None = None,
    **refused: object,
) -> Evaluation:
    """Measure embeddings that lie in shards, by tasks on any kind of worker, with the bits of one call of `evaluate`.

    The shards, concatenated, are the embeddings. Each task reads two blocks of rows and returns a few numbers for each
    query, which are added up; so workers, their number, order, retries and repeated tasks change no bit. The calling
    process never holds the embeddings, but the labels, and 24 bytes for each pair of a query and its match.

    Args:
        shards: paths of .npy files that the workers map, functions without arguments that return an array (picklable;
            called once for each task, so let them map or cache), or arrays, whose rows are sent with the tasks.
            All (n_i, D) of one float dtype, or (n_i, W) uint8 codes with ``similarity="hamming"``; n_i may be 0.
        labels: of all rows in the shards' order, as in `evaluate`.
        gallery: shards of the gallery. None: the queries are their own gallery.
        gallery_labels: of all rows of the gallery.
        map: calls a picklable function once for each task and returns the results, in any order: the builtin, the `map`
            of an executor of threads or processes, `adapters.ray.ray_map()`, or your own (docs/guide/shards.md).
        block: the most rows of a block; a task holds two. None: a quarter of the rows, within 8,192 and 131,072.
        groups, gallery_groups, relevant, ignored, indices, junk, distractors, unmatched: as in `evaluate`.
        similarity: as in `evaluate`, or ``"hamming"`` for codes.
        recall_at, precision_at, average_precision_at, ndcg_at, recall_share_at, reciprocal_rank_at: as in `evaluate`.
        average_precision, ties: as in `evaluate`.
        threads: number of threads of each task; None for all cores of its machine.
        progress: called as ``progress(done, total)``, in pairs compared, after each task.
        refused: nmi, n_clusters, nmi_average, seed and peers are refused by name.

    Returns:
        As `evaluate`; `nmi`, `ami` and `ari` are None.

    Raises:
        TypeError: as `evaluate`, or if the map returns anything but the results of its function.
        ValueError: as `evaluate`; or, naming the shard, if it is absent or unreadable on a worker, differs from the
            others in width or dtype, changed between two tasks, holds a row that isn't finite, or lost its result; or
            if a worker has another version of this package.
    """
    for name in refused:
        if name in _REFUSED:
            raise TypeError(f"evaluate_shards takes no {name}: {_REFUSED[name]}")
        raise TypeError(f"evaluate_shards got an unexpected keyword argument {name!r}")
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
    checked_block = None if block is None else arguments.positive(block, "block")
    check_labels_of_gallery(gallery, gallery_labels, relevant, "gallery")
    own_gallery = gallery is None
    query_shards, *others = describe_shards(
        {"shards": shards} if gallery is None else {"shards": shards, "gallery": gallery},
        similarity == "hamming",
        map,
    )
    stand_ins = [_stand_in(side) for side in (query_shards, *others)]
    relation = relate(
        stand_ins[0],
        "the shards",
        labels,
        None if own_gallery else stand_ins[1],
        "the gallery's shards",
        gallery_labels,
        groups=groups,
        gallery_groups=gallery_groups,
        relevant=relevant,
        ignored=ignored,
        indices=indices,
        junk=junk,
        distractors=distractors,
        unmatched=unmatched,
    )
    sides = []
    for side, stand_in in zip((query_shards, *others), stand_ins):
        kept = relation.kept if own_gallery or side is not query_shards else None
        rows = len(stand_in) if kept is None else len(kept)
        sides.append(Side.divide(side, kept, checked_block or default_block(rows)))
    symmetric = own_gallery and relation.offsets is None and relation.left_out_offsets is None
    options = Options(similarity, ties, metrics, checked_threads, symmetric)
    call = _digest(options, unmatched, sides, relation)
    counting = Counting(sides[0], sides[-1], relation, options, call, map, progress)
    positives = counting.count()
    if len(positives.keys) == 0 and unmatched == "skip":
        raise ValueError(
            f"none of the {len(sides[0])} queries has a match in the gallery; expected a label that both sides have"
        )
    graded = Relation(offsets=relation.offsets, items=relation.items, grades=relation.grades)
    found = _native.compute_metrics(
        ties,
        metrics,
        positives.offsets,
        positives.keys,
        positives.indices,
        positives.counts,
        relation=graded,
        zero_unmatched=unmatched == "zero",
        threads=checked_threads,
    )
    kept = relation.kept if own_gallery else None
    return evaluation_of(found, len(stand_ins[-1]), None, kept, len(stand_ins[0]))


def _stand_in(shards: Sequence[Shard]) -> npt.NDArray[Any]:
    """Return an array of the shape and dtype of all shards together, of one number in memory."""
    rows = sum(shard.shape[0] for shard in shards)
    return np.broadcast_to(np.zeros((), shards[0].dtype), (rows, shards[0].shape[1]))


def _digest(options: Options, unmatched: str, sides: Sequence[Side], relation: Relation) -> str:
    """Return a digest of a call, by which results of another are noticed."""
    shapes = [(shard.name, shard.shape, shard.dtype) for side in sides for shard in side.shards]
    digest = hashlib.blake2b(repr((options, unmatched, shapes)).encode(), digest_size=16)
    for array in relation.arrays():
        digest.update(b"none" if array is None else bytes_of(array))
    return digest.hexdigest()

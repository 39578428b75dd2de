"""Nearest neighbours for embeddings in shards.

Shapes: `Q` queries, `B` queries in a block, `G` gallery items, `K` neighbours.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import COSINE, Progress, Similarity
from dml_eval_rs.matches.allowed import to_allowed
from dml_eval_rs.matches.relation import Relation
from dml_eval_rs.search import check_neighbours, reported_dtype, worst_score
from dml_eval_rs.shards.rows import Side, Source
from dml_eval_rs.shards.tasks import Call, Loaded, Map, describe_shards
from dml_eval_rs.verification.rates import to_order

# Orders, indices and similarities, all (B, K).
_Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[Any]]

_ROWS = 65_536  # number of queries whose neighbours are merged at a time
_WORST = np.iinfo(np.int64).min


def knn_shards(
    queries: Sequence[Source],
    gallery: Sequence[Source] | None,
    k: int,
    *,
    map: Map = builtins.map,
    block: int | None = None,
    similarity: Similarity = COSINE,
    exclude_self: bool = False,
    exclude: npt.ArrayLike | None = None,
    allowed: npt.ArrayLike | None = None,
    threads: int | None = 1,
    progress: Progress | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Find the k nearest gallery items per query when embeddings are in shards, and return the
    exact result of `knn`.

    A task searches a block of queries in a block of the gallery. Neighbours are merged by exact
    keys, so the workers, order, retries and repeated tasks do not change any bits. The calling
    process uses 20 bytes per neighbour, but does not load the embeddings.

    Args:
        queries, gallery: shards, see `evaluate_shards`. Use None as the gallery to search the
            queries.
        k, similarity, exclude_self, exclude: see `knn`.
        allowed: (G,) booleans, the gallery items that can be found. Only these rows are read.
        map, block, threads, progress: see `evaluate_shards`.

    Raises:
        TypeError, ValueError: as `knn` and `evaluate_shards`.
    """
    arguments.one_of(similarity, "similarity", arguments.SIMILARITIES)
    threads = arguments.threads(threads)
    found = describe_shards(queries, gallery, similarity, map, ("queries", "gallery"))
    sides = [Side(shards, block) for shards in found]
    asking, asked = sides[0], sides[-1]
    k, own_Q, excludes = check_neighbours(k, exclude, exclude_self, len(asking), len(asked))
    if exclude_self:
        own_Q = np.arange(len(asking))
    kept_G = (
        None if allowed is None else to_allowed(np.asarray(allowed), len(asking), len(asked)).items
    )
    if kept_G is not None:
        places = np.full(len(asked) + 1, -1)
        places[kept_G] = np.arange(len(kept_G))
        own_Q = None if own_Q is None else places[own_Q]
        asked = Side(found[-1], block, kept_G)
    # Tasks do not exclude items. If any item should be excluded, tasks will return an additional
    # neighbour.
    options = {"similarity": similarity, "k": k + excludes, "threads": threads}
    call = Call(asking, asked, options, map, progress)
    shape = len(asking), k
    best = np.full(shape, _WORST), np.full(shape, -1), np.zeros(shape, reported_dtype(similarity))
    for (i, _), of_tile in call.run_tiles("search", _search):
        _join(best, of_tile, asking.blocks[i].rows.start, own_Q)
    scores, indices = best[2], best[1]
    if kept_G is None:
        return scores, indices
    scores[indices < 0] = worst_score(similarity)
    return scores, np.append(kept_G.astype(np.int64), -1)[indices]


def _join(best: _Found, found: _Found, start: int, own: npt.NDArray[np.int64] | None) -> None:
    """Merge neighbours, sort by order and then by index, and keep the best, excluding the queries'
    `own` items.
    """
    k = best[0].shape[1]
    for low in range(0, len(found[0]), _ROWS):
        orders, indices, similarities = (of[low : low + _ROWS] for of in found)
        rows = slice(start + low, start + low + len(orders))
        if own is not None:
            is_own = indices == own[rows, None]
            orders, indices = np.where(is_own, _WORST, orders), np.where(is_own, -1, indices)
        new = (orders, indices, similarities)
        joined = [np.concatenate([old[rows], of], axis=1) for old, of in zip(best, new)]
        order = np.lexsort((joined[1], ~joined[0]), axis=1)[:, :k]
        for old, of in zip(best, joined):
            old[rows] = np.take_along_axis(of, order, axis=1)


def _search(loaded: Loaded, _: Relation) -> _Found:
    """Return the queries' neighbours in a gallery block: keys as integers, indices and
    similarities.
    """
    x, items, options = loaded.rows[0], loaded.rows[-1], loaded.options
    space = {"similarity": options["similarity"], "threads": options["threads"]}
    similarities, indices = _native.knn(x, items, min(options["k"], len(items)), **space)
    places = indices + loaded.first[1]
    if options["similarity"] == "hamming":
        return -similarities.astype(np.int64), places, similarities
    # Compute exact keys, which can differ even if float32 similarities are equal. A relation's
    # items must be sorted.
    order = np.argsort(indices, axis=1)
    listed = np.take_along_axis(indices, order, axis=1)
    offsets = np.arange(0, indices.size + 1, indices.shape[1], dtype=np.uint64)
    relation = Relation(offsets=offsets, items=listed.reshape(-1).astype(np.uint32))
    found = _native.find_positives(x, items, relation, **space)[1]
    keys = np.empty(indices.shape)
    np.put_along_axis(keys, order, found.reshape(indices.shape), axis=1)
    return to_order(keys), places, similarities

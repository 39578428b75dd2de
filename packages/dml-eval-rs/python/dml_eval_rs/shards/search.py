"""Nearest neighbours of embeddings in shards.

Shapes: `Q` queries, `B` queries of a block, `G` gallery items, `K` neighbours.
"""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dml_eval_rs import __version__, _native, arguments
from dml_eval_rs.partial_counts import order_of
from dml_eval_rs.relation import Relation
from dml_eval_rs.retrieval import SIMILARITIES, Progress
from dml_eval_rs.search import check_k, check_own
from dml_eval_rs.shards.describing import describe_shards
from dml_eval_rs.shards.gallery import Block, Side, default_block, names_of
from dml_eval_rs.shards.running import Key, Map, Work, run_tasks
from dml_eval_rs.shards.sources import Source, name_bad_row, read, row_digests

Found = tuple[
    npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[Any]
]  # (B, K): orders, indices, similarities
_ROWS = 65_536  # rows of a block of queries whose neighbours are joined at a time
_WORST = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of a search that its tasks need."""

    similarity: str
    k: int
    leaves_out: bool
    threads: int | None


def knn_shards(
    queries: Sequence[Source],
    gallery: Sequence[Source] | None,
    k: int,
    *,
    map: Map = builtins.map,
    block: int | None = None,
    similarity: Literal["cosine", "dot", "euclidean", "hamming"] = "cosine",
    exclude_self: bool = False,
    indices: npt.ArrayLike | None = None,
    threads: int | None = 1,
    progress: Progress | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Find the k most similar gallery items of every query, where both lie in shards, with the bits of one `knn`.

    Each task searches one block of queries in one block of the gallery; its neighbours are joined by their exact keys,
    so workers, their number, order, retries and repeated tasks change no bit. The calling process holds 20 bytes for
    each neighbour, and no embeddings.

    Args:
        queries: shards, as in `evaluate_shards`.
        gallery: shards; None for the queries themselves.
        k: 1 to G, or to G − 1 if any query leaves an item out.
        map, block: as in `evaluate_shards`.
        similarity: as in `knn`, or ``"hamming"`` for codes, as in `knn_codes`.
        exclude_self, indices: as in `knn`.
        threads: number of threads of each task; None for all cores of its machine.
        progress: called as ``progress(done, total)``, in pairs compared, after each task.

    Returns:
        As `knn`: similarities (Q, K) float32, descending, and indices (Q, K) int64; with ``"hamming"`` as `knn_codes`:
        distances int32, ascending, and indices.

    Raises:
        TypeError, ValueError: as `knn`, and as `evaluate_shards`.
    """
    arguments.one_of(similarity, "similarity", (*SIMILARITIES, "hamming"))
    checked_threads = arguments.threads(threads)
    checked_block = None if block is None else arguments.positive(block, "block")
    named = {"queries": queries} if gallery is None else {"queries": queries, "gallery": gallery}
    sides = []
    for shards in describe_shards(named, similarity == "hamming", map):
        rows = sum(shard.shape[0] for shard in shards)
        sides.append(Side.divide(shards, None, checked_block or default_block(rows)))
    asking, asked = sides[0], sides[-1]
    own = check_own(indices, exclude_self, len(asking), len(asked))
    if exclude_self:
        own = np.arange(len(asking))
    leaves_out = own is not None and bool((own >= 0).any())
    options = SearchOptions(similarity, check_k(k, len(asked), leaves_out), leaves_out, checked_threads)
    shapes = [(shard.name, shard.shape, shard.dtype) for side in sides for shard in side.shards]
    call = hashlib.blake2b(repr((options, shapes)).encode(), digest_size=16).hexdigest()

    def tasks() -> Iterator[tuple[Work, Block, Block | None]]:
        for j, items in enumerate(asked.blocks):
            for i, block in enumerate(asking.blocks):
                yield (
                    Work(("search", i, j), call, __version__, options),
                    block,
                    None if items is block else items,
                )

    def describe(key: Key) -> str:
        return f"{names_of(asking.blocks[key[1]].pieces)} in {names_of(asked.blocks[key[2]].pieces)}"

    best = _nothing(len(asking), options.k, np.int32 if similarity == "hamming" else np.float32)
    done, total = 0, len(asking) * len(asked)
    for (_, i, j), (digests, *found) in run_tasks(map, _search, tasks(), describe):
        for side, number, digest in zip((asking, asked), (i, j), digests):
            side.check_digests(side.blocks[number].rows, digest)
        of_block = asking.blocks[i]
        _join(best, (found[0], found[1], found[2]), of_block.start, own)
        done += len(of_block) * len(asked.blocks[j])
        if progress is not None:
            progress(done, total)
    return best[2], best[1]


def _nothing(rows: int, k: int, dtype: type[Any]) -> Found:
    return np.full((rows, k), _WORST), np.full((rows, k), -1, np.int64), np.zeros((rows, k), dtype)


def _join(best: Found, found: Found, start: int, own: npt.NDArray[np.int64] | None) -> None:
    """Keep the best of both, by order and then by index; a query's own item is dropped."""
    k = best[0].shape[1]
    for low in range(0, len(found[0]), _ROWS):
        part = slice(low, low + _ROWS)
        orders, indices, similarities = (of[part] for of in found)
        rows = slice(start + low, start + low + len(orders))
        if own is not None:
            orders = np.where(indices == own[rows, None], _WORST, orders)
        joined = [
            np.concatenate([old[rows], new], axis=1)
            for old, new in zip(best, (orders, indices, similarities))
        ]
        order = np.lexsort((joined[1], ~joined[0]), axis=1)[:, :k]
        for old, new in zip(best, joined):
            old[rows] = np.take_along_axis(new, order, axis=1)


def _search(work: Work, queries: Block, gallery: Block | None) -> list[Any]:
    """Search a block of queries in a block of the gallery (None: in itself), which may hold the queries' own items.

    Returns:
        The digests of both blocks' rows, and for each query the orders of the neighbours' keys, their indices in the
        gallery and their similarities; one more than requested where queries leave an item out.
    """
    options: SearchOptions = work.options
    blocks = [queries] if gallery is None else [queries, gallery]
    rows = [read(block.pieces) for block in blocks]
    digests = [row_digests(of) for of in rows]
    x, items, first = rows[0], rows[-1], blocks[-1].start
    k = min(options.k + options.leaves_out, len(items))
    try:
        if options.similarity == "hamming":
            distances, indices = _native.knn_codes(x, items, k, exclude_self=False, threads=options.threads)
            return [digests, -distances.astype(np.int64), indices + first, distances]
        similarities, indices = _native.knn(
            x, items, k, similarity=options.similarity, exclude_self=False, threads=options.threads
        )
        keys = _keys(x, items, indices, options)
    except ValueError as error:
        for block, of in zip(blocks, rows):
            bad = name_bad_row(block.pieces, of, options.similarity)
            if bad is not None:
                raise ValueError(bad) from None
        raise error
    return [digests, order_of(keys), indices + first, similarities]


def _keys(
    x: npt.NDArray[Any], items: npt.NDArray[Any], indices: npt.NDArray[np.int64], options: SearchOptions
) -> npt.NDArray[np.float64]:
    """Return the exact keys of neighbours (B, K), which similarities in float32 don't tell apart."""
    order = np.argsort(indices, axis=1)
    listed = np.take_along_axis(indices, order, axis=1)
    offsets = np.arange(0, indices.size + 1, indices.shape[1], dtype=np.uint64)
    relation = Relation(offsets=offsets, items=listed.reshape(-1).astype(np.uint32))
    _, found, _ = _native.find_positives(
        x, items, relation, similarity=options.similarity, first_item=0, threads=options.threads
    )
    keys = np.empty(indices.shape)
    np.put_along_axis(keys, order, found.reshape(indices.shape), axis=1)
    return keys

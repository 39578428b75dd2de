"""Improve search results by the neighbours of neighbours: re-ranking and query expansion, in memory
of O(N·k).

Shapes: `N` items (the queries, then the gallery if there is one), `Q` queries, `G` gallery, `B`
queries in a block, `D` dim, `K` neighbours, `M` entries of a sparse matrix, `P` matches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Sides
from dml_eval_rs.matches.matching import Matching, contains
from dml_eval_rs.matches.relation import Relation
from dml_eval_rs.matches.relevance import Relevance
from dml_eval_rs.metrics.evaluation import Evaluation
from dml_eval_rs.metrics.names import family_of
from dml_eval_rs.retrieval import (
    CheckedOptions,
    LabelsLike,
    Matches,
    describe_no_match,
    to_evaluation,
)
from dml_eval_rs.search.neighbours import check_finite, check_neighbours, knn

Distance = Literal["cosine", "euclidean"]
_Integers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

_DISTANCES = ("cosine", "euclidean")
_BLOCK = 1 << 22  # numbers in the largest temporary arrays
_WHOLE = ("map", "minp", "mrr")  # metrics that need the ranks of all matches


def rerank(
    queries: npt.ArrayLike,
    gallery: npt.ArrayLike | None,
    k: int,
    k1: int = 20,
    k2: int = 6,
    weight: float = 0.3,
    *,
    similarity: Distance = "cosine",
    threads: int | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Find the k nearest gallery items per query, like `knn`, by a distance that compares
    neighbourhoods.

    Items with similar neighbours come first. The distance is (1 − weight) times the Jaccard
    distance of the k-reciprocal neighbours plus weight times the scaled distance (Zhong et al.
    2017, Re-ranking Person Re-identification with k-reciprocal Encoding). For the definition, see
    docs/reference/metrics.md in the repository. Use this when classes have at least a few items,
    and queries are searched together: all queries and gallery items take part, so results depend
    on the other queries.

    Args:
        queries: (Q, D) floats, see `evaluate`.
        gallery: (G, D). Use None to search the other queries.
        k: number of items to return per query, 1 to G, or to Q − 1 without a gallery.
        k1: neighbours that are tested for reciprocity, 1 to N − 1, where N = Q + G, or Q without a
            gallery.
        k2: items whose neighbourhoods are averaged, including the item itself, 1 to N; 1 averages
            none.
        weight: the share of the scaled distance, 0 to 1.
        similarity: ``"cosine"``, the distance between rows scaled to length 1, or ``"euclidean"``.
        threads: see `evaluate`.

    Returns:
        Distances (Q, K) float32, lowest first, and indices (Q, K) int64. Equal distances are sorted
        by the scaled distance, then by index.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `knn`, or if `k1`, `k2` or `weight` is out of
            range.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import rerank
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> distances, indices = rerank(x, None, k=1, k1=2, k2=1)
        >>> indices.ravel().tolist()
        [1, 0, 3, 2, 1]
    """
    sides = arguments.to_sides(
        queries, gallery, arguments.one_of(similarity, "similarity", _DISTANCES)
    )
    k, _, _ = check_neighbours(k, None, gallery is None, len(sides.queries), len(sides.items))
    encoding = Encoding(sides, k1, k2, weight, similarity, threads)
    found = [encoding.search(rows, k) for rows in _blocks(len(sides.queries), k)]
    return np.concatenate([each[0] for each in found]), np.concatenate([each[1] for each in found])


def expand_queries(
    queries: npt.ArrayLike,
    gallery: npt.ArrayLike | None = None,
    k: int = 10,
    alpha: float = 3.0,
    *,
    threads: int | None = None,
) -> npt.NDArray[np.float32]:
    """Replace queries by a weighted mean with their k nearest items, to find more matches in a
    second search.

    A unit query q becomes q + Σ max(q·x, 0)^alpha · x over the k nearest unit items x by cosine,
    scaled to length 1 (αQE, Radenović et al. 2018, Fine-tuning CNN Image Retrieval with No Human
    Annotation, Sec. 3.4; negative cosines count as 0 here). ``alpha=0`` weighs all equally (Chum et
    al. 2007). To augment a gallery (DBA, Arandjelović and Zisserman 2012), use
    ``expand_queries(gallery)``.

    Args:
        queries: (Q, D) floats, see `evaluate`.
        gallery: (G, D). Use None for the other queries.
        k: see `rerank`.
        alpha: the exponent, at least 0.
        threads: see `evaluate`.

    Returns:
        (Q, D) float32 of length 1. If a sum is zero, the query stays.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `knn`, or if `alpha` is negative.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import expand_queries
        >>> queries, gallery = np.array([[0.0, 1.0]]), np.array([[3.0, 4.0], [-1.0, 0.0]])
        >>> expanded = expand_queries(queries, gallery, k=1, alpha=0)
        >>> [round(float(x), 2) for x in expanded[0]]
        [0.32, 0.95]
    """
    sides = arguments.to_sides(queries, gallery, "cosine")
    alpha = check_finite(alpha, "alpha")
    if alpha < 0:
        raise ValueError(f"alpha is {alpha}; expected at least 0")
    near: Any = {"exclude_self": gallery is None, "threads": threads}
    similarity_QK, item_QK = knn(sides.queries, sides.gallery, k, **near)
    expanded_QD = np.empty(sides.queries.shape, np.float32)
    for rows in _blocks(len(expanded_QD), sides.queries.shape[1] * k):
        query_BD = _scale(sides.queries[rows])
        item_MD = _scale(sides.items[item_QK[rows].ravel()])
        weight_BK = np.maximum(similarity_QK[rows], 0, dtype=np.float64) ** alpha
        sum_BD = query_BD + np.einsum(
            "bk,bkd->bd", weight_BK, item_MD.reshape(*weight_BK.shape, -1)
        )
        is_zero = ~(np.abs(sum_BD) > 1e-12).any(axis=1)
        sum_BD[is_zero] = query_BD[is_zero]
        expanded_QD[rows] = _scale(sum_BD)
    return expanded_QD


class _Sparse(NamedTuple):
    """A sparse matrix. The entries of row r are in `columns` and `values`, from ``starts[r]`` to
    ``starts[r + 1]``.
    """

    starts: _Integers
    columns: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]

    def places(self, rows: npt.NDArray[Any]) -> tuple[_Integers, _Integers]:
        """Return the places of all entries of rows, and the number per row."""
        sizes = self.starts[rows + 1] - self.starts[rows]
        before = np.cumsum(sizes) - sizes
        return np.repeat(self.starts[rows] - before, sizes) + np.arange(sizes.sum()), sizes


def _to_sparse(keys: _Integers, values: npt.NDArray[Any], n: int) -> _Sparse:
    """Build a matrix of n columns and rows from values with sorted keys, row · n + column."""
    starts = np.searchsorted(keys, np.arange(n + 1) * n)
    return _Sparse(starts, (keys % n).astype(np.int32), values.astype(np.float32))


class Encoding:
    """The neighbourhoods of all items as sparse vectors, to search by `rerank`, which describes the
    arguments.
    """

    def __init__(
        self,
        sides: Sides,
        k1: int,
        k2: int,
        weight: float,
        similarity: Distance,
        threads: int | None,
    ) -> None:
        alone = sides.gallery is None
        items_ND = sides.queries if alone else np.concatenate([sides.queries, sides.items])
        n = self._n = len(items_ND)
        self._first = 0 if alone else len(sides.queries)  # the first gallery item
        self._sides = sides
        self._options: Any = {"similarity": similarity, "threads": threads}
        for name, number, most in (("k1", k1, n - 1), ("k2", k2, n)):
            if arguments.positive(number, name) > most:
                raise ValueError(f"{name} is {number}; expected 1 to {most} for {n} items")
        self._weight = check_finite(weight, "weight")
        if not 0 <= self._weight <= 1:
            raise ValueError(f"weight is {weight}; expected 0 to 1")
        near: Any = knn(items_ND, None, max(k1, k2 - 1), exclude_self=True, **self._options)[1]
        near_NK = np.concatenate([np.arange(n)[:, None], near], axis=1)
        rows_ND = (
            _scale(items_ND) if similarity == "cosine" else items_ND - items_ND.mean(0, np.float64)
        )
        self._rows_ND, self._square_N = rows_ND, np.einsum("nd,nd->n", rows_ND, rows_ND)
        self._farthest_N = np.ones(n)
        farthest = _find_farthest(rows_ND, self._square_N, threads)
        # If all items are equal, all distances are 0, so avoid a division by 0.
        self._farthest_N = np.maximum(
            self._distances(np.arange(n), farthest), np.finfo(np.float64).tiny
        )
        encoded = self._encode(near_NK, k1)
        encoded = self._average(encoded, near_NK[:, :k2]) if k2 > 1 else encoded
        self._encoded = encoded
        # Sort the gallery's entries by column, to find the items that share neighbours with a
        # query.
        entries = slice(encoded.starts[self._first], None)
        columns = encoded.columns[entries]
        order = np.argsort(columns, kind="stable")
        row_M = np.repeat(np.arange(n - self._first), np.diff(encoded.starts[self._first :]))
        starts = np.searchsorted(columns[order], np.arange(n + 1))
        self._inverse = _Sparse(
            starts, row_M[order].astype(np.int32), encoded.values[entries][order]
        )

    def search(self, rows: range, k: int) -> tuple[npt.NDArray[np.float32], _Integers]:
        """Find the k nearest gallery items of some queries; k must be valid."""
        n_items = self._n - self._first
        own = self._first == 0
        near_BK = None
        if k < n_items - own:
            exclude: Any = np.array(rows) if own else None
            block = self._sides.queries[rows.start : rows.stop]
            near_BK = knn(block, self._sides.items, k, exclude=exclude, **self._options)[1]
        distance_BK, item_BK = (
            np.empty((len(rows), k), np.float32),
            np.empty((len(rows), k), np.int64),
        )
        for b, query in enumerate(rows):
            jaccard_G = self._jaccard(query)
            item = (
                np.arange(n_items)
                if near_BK is None
                else self._choose(query, jaccard_G, near_BK[b])
            )
            item = item[item != query] if own else item
            total, scaled = self._combine(query, jaccard_G, item)
            total = total.astype(np.float32)
            best = np.lexsort((scaled.astype(np.float32), total))[:k]
            distance_BK[b], item_BK[b] = total[best], item[best]
        return distance_BK, item_BK

    def _choose(self, query: int, jaccard_G: _Floats, near_K: _Integers) -> _Integers:
        """Return a few items that include the k nearest.

        `near_K` are the k items with the smallest scaled distances, so no other item has a smaller
        scaled distance.
        """
        k, (total_K, scaled_K) = len(near_K), self._combine(query, jaccard_G, near_K)
        item = np.flatnonzero(jaccard_G < 1)
        item = item[item != query] if self._first == 0 else item
        # The last term exceeds rounding errors.
        least = (1 - self._weight) * jaccard_G[item] + self._weight * scaled_K.max() - 1e-6
        if len(item) > k:
            tried = np.union1d(near_K, item[np.argpartition(least, k)[:k]])
            total_K = self._combine(query, jaccard_G, tried)[0]
        limit = np.partition(total_K, k - 1)[k - 1]
        return np.union1d(near_K, item[least <= limit])

    def _combine(self, query: int, jaccard_G: _Floats, item: _Integers) -> tuple[_Floats, _Floats]:
        """Return the distances of gallery items, and the scaled distances."""
        scaled = self._distances(query, item + self._first)
        return (1 - self._weight) * jaccard_G[item] + self._weight * scaled, scaled

    def _jaccard(self, query: int) -> _Floats:
        """Return 1 − m / (2 − m), (G,), where m sums min(query value, item value) over columns."""
        of = self._encoded
        entries = slice(of.starts[query], of.starts[query + 1])
        places, sizes = self._inverse.places(of.columns[entries])
        smaller = np.minimum(self._inverse.values[places], np.repeat(of.values[entries], sizes))
        shared_G = np.bincount(self._inverse.columns[places], smaller, self._n - self._first)
        # Sums of float32 values can exceed 1.
        jaccard_G: _Floats = np.maximum(1 - shared_G / (2 - shared_G), 0)
        return jaccard_G

    def _distances(self, a: Any, b: _Integers) -> _Floats:
        """Return squared distances between items, as a share of the distance to the item farthest
        from `a`.
        """
        rows, dot = self._rows_ND, np.empty(len(b))
        if np.ndim(a) == 0:
            # Copying more than half of the rows takes longer than multiplying all rows.
            dot = rows[b] @ rows[a] if len(b) < len(rows) // 2 else (rows @ rows[a])[b]
        else:
            for block in _blocks(len(b), rows.shape[1]):
                dot[block] = np.einsum("md,md->m", rows[a[block]], rows[b[block]])
        square = self._square_N
        distances: _Floats = np.maximum(square[a] + square[b] - 2 * dot, 0) / self._farthest_N[a]
        return distances

    def _encode(self, near_NK: _Integers, k1: int) -> _Sparse:
        """Return exp(−distance) of the expanded reciprocal neighbours, divided by the sum per
        row.
        """
        n = self._n
        pairs = _find_reciprocal(near_NK, k1)
        # Like numpy.around in the authors' code, round goes to the even integer from a half.
        half = _to_sparse(_find_reciprocal(near_NK, round(k1 / 2)), np.zeros(0), n)
        starts = np.searchsorted(pairs, np.arange(n + 1) * n)
        found = []
        for rows in _blocks(n, (k1 + 1) ** 2):
            own = pairs[starts[rows.start] : starts[rows.stop]]
            places, sizes = half.places(own % n)
            expanded = np.repeat(own // n, sizes) * n + half.columns[places]
            counts = np.add.reduceat(
                contains(pairs, expanded), np.cumsum(sizes) - sizes, dtype=np.int64
            )
            found.append(np.union1d(own, expanded[np.repeat(3 * counts > 2 * sizes, sizes)]))
        keys = np.concatenate(found)
        values = np.exp(-self._distances(keys // n, keys % n))
        return _to_sparse(keys, values / np.bincount(keys // n, values, n)[keys // n], n)

    def _average(self, encoded: _Sparse, near_NK: _Integers) -> _Sparse:
        """Return the mean of the rows of each item's neighbours."""
        n, found = self._n, []
        width = near_NK.shape[1] * int(np.ceil(len(encoded.values) / n))
        for rows in _blocks(n, width):
            places, sizes = encoded.places(near_NK[rows].ravel())
            row = np.repeat(np.repeat(np.array(rows), near_NK.shape[1]), sizes)
            keys, place = np.unique(row * n + encoded.columns[places], return_inverse=True)
            sums = np.bincount(place, encoded.values[places]) / near_NK.shape[1]
            found.append((keys, sums.astype(np.float32)))
        return _to_sparse(
            np.concatenate([each[0] for each in found]),
            np.concatenate([each[1] for each in found]),
            n,
        )


def _find_reciprocal(near_NK: _Integers, k: int) -> _Integers:
    """Return the sorted pairs, i · N + j, where each item is among the other's k nearest, or i =
    j.
    """
    n = len(near_NK)
    pairs = np.sort((np.arange(n)[:, None] * n + near_NK[:, : k + 1]).ravel())
    return pairs[contains(pairs, pairs % n * n + pairs // n)]


def _find_farthest(rows_ND: npt.NDArray[Any], square_N: _Floats, threads: int | None) -> _Integers:
    """Return, for each item x, the farthest item y: it maximises the dot product of (−2x, 1) and
    (y, |y|²).
    """
    asked = np.concatenate([-2 * rows_ND, np.ones((len(rows_ND), 1))], axis=1, dtype=np.float32)
    given = np.concatenate([rows_ND, square_N[:, None]], axis=1, dtype=np.float32)
    return knn(asked, given, 1, similarity="dot", threads=threads)[1][:, 0]


def _scale(rows: npt.NDArray[Any]) -> _Floats:
    """Return rows scaled to length 1, float64."""
    scaled = rows / np.abs(rows).max(axis=1, keepdims=True).astype(np.float64)
    unit: _Floats = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
    return unit


def _blocks(n: int, width: int) -> Iterator[range]:
    """Divide n rows of `width` numbers into blocks."""
    step = max(1, _BLOCK // max(1, width))
    return (range(start, min(n, start + step)) for start in range(0, n, step))


def evaluate_reranked(
    embeddings: npt.ArrayLike,
    labels: Matches,
    gallery: npt.ArrayLike | None,
    gallery_labels: LabelsLike | None,
    options: CheckedOptions,
    *,
    k1: int = 20,
    k2: int = 6,
    weight: float = 0.3,
) -> Evaluation:
    """Measure the metrics of `evaluate` on the rankings of `rerank`, which must be by cosine or
    Euclidean distance.
    """
    similarity: Any = arguments.one_of(options.similarity, "similarity", _DISTANCES)
    sides = arguments.to_sides(embeddings, gallery, similarity, ("embeddings", "gallery"))
    matching = Matching(labels, gallery_labels, None if gallery is None else len(sides.items))
    matches_Q = matching.count_matches()
    if not matches_Q.any() and not options.zero_unmatched:
        raise ValueError(describe_no_match(len(matches_Q)))
    encoding = Encoding(sides, k1, k2, weight, similarity, options.threads)
    n_items, most = len(sides.items), len(sides.items) - (gallery is None)
    graded = isinstance(labels, Relevance) and labels.grades is not None
    k = most
    if not graded and not {*options.metrics} & {*_WHOLE}:
        depths = [
            int(name.partition("@")[2])
            for name in options.metrics
            if str(family_of(name)).endswith("@K")
        ]
        k = min(most, max([*depths, int(matches_Q.max())]) + matching.most_excluded)
    parts = [
        _count(encoding, matching, matches_Q, rows, k, n_items)
        for rows in _blocks(len(matches_Q), k)
    ]
    key_P, item_P, count_M = (np.concatenate(arrays) for arrays in zip(*parts))
    offsets = np.append(0, np.cumsum(matches_Q)).astype(np.uint64)
    relation = Relation()
    if graded:
        assert isinstance(labels, Relevance)
        relation = Relation(offsets=labels.offsets, items=labels.items, grades=labels.grades)
    columns = _native.compute_metrics(
        relation, offsets=offsets, keys=key_P, indices=item_P, counts=count_M,
        metrics=options.metrics, ties="index",
        threads=options.threads, zero_unmatched=options.zero_unmatched,
    )  # fmt: skip
    return to_evaluation(columns, options, len(matches_Q), n_items, None)


def _count(
    encoding: Encoding, matching: Matching, matches_Q: _Integers, rows: range, k: int, n_items: int
) -> tuple[_Floats, npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return the matches' keys and items, and how many non-matches lie between matches, for the
    core.

    Matches that aren't listed follow all other items.
    """
    item_BK = encoding.search(rows, k)[1]
    query_B = np.array(rows)
    kept_BK = ~matching.excludes(query_B, item_BK)
    row, column = np.nonzero(matching.matches(query_B, item_BK) & kept_BK)
    rank: _Integers = np.cumsum(kept_BK, axis=1, dtype=np.int64)[row, column]
    size_B, found_B = matches_Q[rows.start : rows.stop], np.bincount(row, minlength=len(rows))
    first_B = np.cumsum(size_B) - size_B
    place = first_B[row] + np.arange(len(row)) - (np.cumsum(found_B) - found_B)[row]
    key_P, item_P = np.full(size_B.sum(), -2.0 * n_items), np.zeros(size_B.sum(), np.uint64)
    key_P[place], item_P[place] = -rank, item_BK[row, column]
    count_M = np.zeros(len(key_P) + len(rows), np.uint64)
    before = np.where(np.diff(row, prepend=-1) > 0, 0, np.roll(rank, 1))
    count_M[place + row] = rank - before - 1
    missing = np.flatnonzero(found_B < size_B)
    count_M[(first_B + found_B)[missing] + missing] = n_items
    return key_P, item_P, count_M

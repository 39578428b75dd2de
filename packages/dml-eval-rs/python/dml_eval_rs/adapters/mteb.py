"""A search of MTEB's encoders that finds the exact neighbours.

Shapes: `Q` queries, `G` documents, `D` dim, `K` results per query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from mteb.models import search_wrappers

from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Similarity
from dml_eval_rs.inputs.conversion import concatenate_blocks, to_array
from dml_eval_rs.search.neighbours import knn

_SIMILARITIES = ("cosine", "dot", "euclidean")
# A model may compute similarities in TF32, so its scores can differ by this share of the largest.
_TOLERANCE = 0.01
# torch computes the distances of more rows from products, which is inaccurate near 0.
_CHECKED = 25


class SearchEncoderWrapper(search_wrappers.SearchEncoderWrapper):
    """A model for `mteb.evaluate`: mteb's wrapper of an encoder, with an `ExactSearchIndex`.

    Args:
        model, similarity, threads: see `ExactSearchIndex`.

    Raises:
        ValueError: as `ExactSearchIndex`.
    """

    task_corpus: Any
    index_backend: ExactSearchIndex

    def __init__(
        self, model: Any, *, similarity: Similarity | None = None, threads: int | None = None
    ) -> None:
        index = ExactSearchIndex(model, similarity=similarity, threads=threads)
        super().__init__(model, index_backend=index)

    def index(self, corpus: Any, **options: Any) -> None:
        """Embed the documents, see mteb."""
        self.index_backend.clear()  # documents of a task that failed
        super().index(corpus, **options)
        # mteb reads the id of each result, which takes 0.1 ms in a column of datasets 4 or newer.
        self.task_corpus = {"id": corpus["id"][:]}


class ExactSearchIndex:
    """An `IndexEncoderSearchProtocol`, for the argument `index_backend` of mteb's wrapper.

    Similarities are compared in float64, and documents with equal similarities are sorted by their
    place in the corpus. The matrix of all similarities is not stored.

    Args:
        model: the mteb encoder; ``model.mteb_model_meta.similarity_fn_name`` states the similarity.
        similarity: ``"cosine"``, ``"dot"`` or ``"euclidean"``, if the model does not state it.
        threads: see `knn`.

    Raises:
        ValueError: if the similarity is a different one, such as MaxSim, or unknown.
    """

    def __init__(
        self, model: Any, *, similarity: Similarity | None = None, threads: int | None = None
    ) -> None:
        stated = model.mteb_model_meta.similarity_fn_name if similarity is None else similarity
        name = getattr(stated, "value", stated)
        if name not in _SIMILARITIES:
            raise ValueError(
                f"the model's similarity is {name!r}; expected one of {_SIMILARITIES}: if the "
                "model does not state it, use ExactSearchIndex(model, similarity=...)"
            )
        self._similarity = cast("Similarity", name)
        self._threads = arguments.threads(threads)
        self._blocks: list[npt.NDArray[Any]] = []
        self._ids: list[str] = []

    def add_documents(self, embeddings: Any, idxs: Sequence[str]) -> None:
        """Add documents (G, D) and their ids; floats in numpy arrays or CPU tensors aren't copied.

        Raises:
            TypeError, ValueError: if the shape is wrong, or the numbers of rows and ids differ.
        """
        # A slice of a column of datasets is a list; reading the ids one by one would take seconds.
        rows_GD, ids = self._to_rows(embeddings, "document embeddings"), idxs[:]
        if len(ids) != len(rows_GD):
            raise ValueError(f"{len(rows_GD)} documents have {len(ids)} ids; expected one id each")
        self._blocks.append(rows_GD)
        self._ids += ids

    def search(
        self,
        embeddings: Any,
        top_k: int,
        similarity_fn: Callable[[Any, Any], Any],
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        query_idx_to_id: Mapping[int, str] | None = None,
    ) -> tuple[list[list[float]], list[list[int]]]:
        """Find the nearest documents of queries (Q, D), or sort each query's candidates.

        Args:
            embeddings: (Q, D) queries.
            top_k: maximum number of results per query.
            similarity_fn: the model's similarity, which must return equal scores.
            top_ranked: query id → ids of candidates; by default, all documents are searched.
            query_idx_to_id: row → query id, needed if there are candidates.

        Returns:
            Scores, highest first (for ``"euclidean"``, negative distances), and indices: places in
            the corpus, or in the query's list of candidates if there is one, as mteb expects.

        Raises:
            TypeError, ValueError: as `knn`, or if there are no documents, a candidate is not among
                the documents, or `similarity_fn` returns other scores.
        """
        if not self._blocks:
            raise ValueError("there are no documents; expected add_documents before search")
        if len(self._blocks) > 1:
            self._blocks = [concatenate_blocks(self._blocks)]
        queries_QD, documents_GD = self._to_rows(embeddings, "query embeddings"), self._blocks[0]
        lists, allowed, k = [], None, len(documents_GD)
        if top_ranked is not None:
            if query_idx_to_id is None:
                raise ValueError(
                    "query_idx_to_id is None; expected query ids, since top_ranked is given"
                )
            queries = [query_idx_to_id[row] for row in range(len(queries_QD))]
            lists = self._find_candidates(queries, top_ranked)
            sizes = [len(items) for items, _ in lists]
            allowed = (np.cumsum([0, *sizes]), np.concatenate([items for items, _ in lists]))
            k = max(1, *sizes)
        scores_QK, found_QK = knn(
            *self._without_zeros(queries_QD, documents_GD),
            min(top_k, k),
            similarity=self._similarity,
            allowed=allowed,
            threads=self._threads,
        )
        if self._similarity == "euclidean":
            scores_QK = -np.sqrt(-scores_QK)
        for row in np.flatnonzero(found_QK[:, 0] >= 0)[:1]:
            found = found_QK[row, :_CHECKED][found_QK[row, :_CHECKED] >= 0]
            pair = queries_QD[row : row + 1], documents_GD[found]
            theirs = similarity_fn(*(side.astype(np.float32) for side in pair))
            self._check_scores(scores_QK[row, : len(found)], to_array(theirs, "scores").ravel())
        if top_ranked is None:
            return scores_QK.tolist(), found_QK.tolist()
        scores, places = list[list[float]](), list[list[int]]()
        for (items, place), scores_K, found_K in zip(lists, scores_QK, found_QK, strict=True):
            n = min(len(items), len(found_K))  # the others are missing
            scores.append(scores_K[:n].tolist())
            places.append(place[np.searchsorted(items, found_K[:n])].tolist())
        return scores, places

    def clear(self) -> None:
        """Drop all documents."""
        self._blocks, self._ids = [], []

    def _to_rows(self, x: Any, name: str) -> npt.NDArray[Any]:
        array = to_array(x, name, 2)
        array = array.astype(np.float32) if array.dtype.kind in "iub" else array  # like mteb
        return arguments.check_rows(array, name, self._similarity)

    def _without_zeros(
        self, queries_QD: npt.NDArray[Any], documents_GD: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Add columns that make the cosine with a zero row 0, as in mteb."""
        sides = queries_QD, documents_GD
        is_zero_Q, is_zero_G = (~side.any(axis=1) for side in sides)
        if self._similarity != "cosine" or not (is_zero_Q.any() or is_zero_G.any()):
            return sides
        return (
            np.column_stack([queries_QD, is_zero_Q, np.zeros_like(is_zero_Q)]),
            np.column_stack([documents_GD, np.zeros_like(is_zero_G), is_zero_G]),
        )

    def _find_candidates(
        self, queries: list[str], top_ranked: Mapping[str, Sequence[str]]
    ) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Return the candidates per query in ascending order, and their places in the list."""
        row_of = {document: row for row, document in enumerate(self._ids)}
        lists = []
        for query in queries:
            ids = top_ranked.get(query) or ()
            if not ids:
                arguments.warn(f"top_ranked has no documents for query {query!r}")
            try:
                rows = np.array([row_of[document] for document in ids], np.int64)
            except KeyError as error:
                raise ValueError(
                    f"top_ranked lists document {error} for query {query!r}, which was not added; "
                    "expected ids of added documents"
                ) from None
            lists.append(np.unique(rows, return_index=True))
        return lists

    def _check_scores(self, ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> None:
        if not np.allclose(ours, theirs, rtol=0, atol=_TOLERANCE * np.abs(theirs).max()):
            worst = np.abs(ours - theirs).argmax()
            raise ValueError(
                f"the model's similarity function returns {theirs[worst]:.6g} for a pair whose "
                f"{self._similarity} similarity is {ours[worst]:.6g}; expected equal scores: use "
                "mteb's search for this model"
            )

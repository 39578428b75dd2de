"""The nearest items with different labels.

Shapes: `N` items, `G` gallery, `D` dim, `W` bytes per code, `K` neighbours.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import COSINE, Similarity
from dml_eval_rs.matches.allowed import AllowedLike, to_allowed
from dml_eval_rs.matches.relevance import Relevance
from dml_eval_rs.search.neighbours import check_finite, check_neighbours

Below = Literal["hardest", "easiest"]


def hard_negatives(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike | Relevance,
    k: int,
    *,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    allowed: AllowedLike | None = None,
    below: Below | None = None,
    margin: float = 0.0,
    relative_margin: float | None = None,
    similarity: Similarity = COSINE,
    threads: int | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Find the k nearest items with different labels for each item, exactly, sorted like `knn`.

    If `below` is given, negative n of item a is only used if s(a, n) < r(a) − margin, where r(a) is
    the similarity to the hardest positive, min over p of s(a, p), or to the easiest, the max. Use
    ``"hardest"`` to find semi-hard negatives (Schroff et al. 2015, FaceNet, Eq. 4), which are less
    similar to a than any positive. Use a margin to skip items that are near because the label is
    wrong (Moreira et al. 2024, NV-Retriever, TopK-MarginPos), or a relative margin, s(a, n) <
    relative_margin · r(a) (TopK-PercPos). s is the float64 score of `verify`, see
    docs/reference/verification.md; for codes, minus the distance.

    Args:
        embeddings: (N, D) floats or (N, W) codes, see `knn`.
        labels: (N,) integers of any width, booleans or strings; at least two labels must differ,
            unless there is a gallery. To list the positives per item, for example the relevant
            passages of a question, use a `Relevance`.
        k: 1 to N − 1, or with a gallery, to G.
        gallery: (G, D) or (G, W), the items to find, such as a corpus. By default, search the
            embeddings; items don't find themselves.
        gallery_labels: (G,) the labels of the gallery, unless `labels` is a `Relevance`.
        allowed: the items that can be found, see `knn`; positives need not be among these.
        below: ``"hardest"``, ``"easiest"``, or None to use all negatives, as for an item that does
            not have a positive.
        margin: at least 0 (the default), in the units of the similarities or distances; needs
            `below`.
        relative_margin: above 0, at most 1, for example 0.95; needs `below`, and ``"cosine"`` or
            ``"dot"``.
        similarity, threads: see `knn`.

    Returns:
        Similarities (N, K) float32, highest first, or distances (N, K) int32, lowest first; and
        indices (N, K) int64. When negatives are fewer than k, rows will end with NaN, or a distance
        of -1, and index -1.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `knn`, or if all labels are equal.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import hard_negatives
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> similarities, indices = hard_negatives(x, [0, 0, 1, 1, 1], k=1)
        >>> indices.ravel().tolist()
        [4, 4, 1, 1, 1]
    """
    sides = arguments.to_sides(embeddings, gallery, similarity, ("embeddings", "gallery"))
    n_queries, n_items = len(sides.queries), len(sides.items)
    options: dict[str, Any] = {}
    if isinstance(labels, Relevance):
        if gallery_labels is not None:
            raise ValueError("gallery_labels and a Relevance are both given; expected only one")
        options["positives"] = to_allowed(labels, n_queries, n_items)
    elif gallery is None:
        (code_N,) = arguments.encode(arguments.partition(labels, "labels", n_queries))
        if code_N.max() == 0:
            raise ValueError(f"all {n_queries} labels are equal; expected at least two classes")
        options["labels"] = code_N, code_N
    else:
        if gallery_labels is None:
            raise ValueError(
                "gallery is given without gallery_labels; expected both, or a Relevance as labels"
            )
        own = arguments.partition(labels, "labels", n_queries)
        options["labels"] = tuple(
            arguments.encode(own, arguments.partition(gallery_labels, "gallery_labels", n_items))
        )
    if gallery is None and gallery_labels is not None:
        raise ValueError("gallery_labels is given without gallery; expected both, or neither")
    if allowed is not None:
        options["allowed"] = to_allowed(allowed, n_queries, n_items)
    return _native.hard_negatives(
        sides.queries,
        sides.gallery,
        check_neighbours(k, None, gallery is None, n_queries, n_items)[0],
        **_check_bound(below, margin, relative_margin, similarity),
        similarity=similarity,
        threads=arguments.threads(threads),
        **options,
    )


def _check_bound(
    below: Below | None, margin: float, relative_margin: float | None, similarity: str
) -> dict[str, Any]:
    """Check the bound of `hard_negatives`, and return the options for the core."""
    margin = check_finite(margin, "margin")
    if margin < 0:
        raise ValueError(f"margin is {margin}; expected at least 0")
    factor = 1.0 if relative_margin is None else check_finite(relative_margin, "relative_margin")
    given = {"margin": margin or None, "relative_margin": relative_margin}
    for name, value in given.items():
        if value is not None and below is None:
            raise ValueError(
                f"{name} is {value} and below is None; expected 'hardest', 'easiest', or no {name}"
            )
    if relative_margin is not None:
        if not 0 < factor <= 1 or margin:
            raise ValueError(
                f"relative_margin is {factor}, margin {margin}; expected above 0, at most 1, and "
                "no margin"
            )
        if similarity not in ("cosine", "dot"):
            raise ValueError(
                f"relative_margin is given for {similarity!r}; expected 'cosine' or 'dot', or a "
                "margin"
            )
    if below is not None:
        arguments.one_of(below, "below", ("hardest", "easiest"))
    return {"below": below, "margin": margin, "factor": factor}

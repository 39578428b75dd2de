"""Retrieval metrics of embeddings and of binary codes.

Shapes: `Q` queries, `G` gallery, `D` dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.clustering import AVERAGES, Average, check_clusters, cluster_agreement
from dml_eval_rs.evaluation import Evaluation
from dml_eval_rs.metric_names import evaluation_of, metric_names
from dml_eval_rs.peers import Peers, check_alike
from dml_eval_rs.relation import GradedLists, Lists, relate

Similarity = Literal["cosine", "dot", "euclidean"]
Ties = Literal["index", "optimistic", "pessimistic", "expected"]
Unmatched = Literal["skip", "zero"]
Progress = Callable[[int, int], object]

SIMILARITIES = ("cosine", "dot", "euclidean")
TIES: tuple[Ties, ...] = ("index", "optimistic", "pessimistic", "expected")
UNMATCHED = ("skip", "zero")


def evaluate(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike | None = None,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    *,
    groups: npt.ArrayLike | None = None,
    gallery_groups: npt.ArrayLike | None = None,
    relevant: Lists | GradedLists | None = None,
    ignored: Lists | None = None,
    indices: npt.ArrayLike | None = None,
    junk: npt.ArrayLike = (),
    distractors: npt.ArrayLike = (),
    unmatched: Unmatched = "skip",
    similarity: Similarity = "cosine",
    recall_at: Iterable[int] = (1, 10, 100, 1000),
    precision_at: Iterable[int] = (),
    average_precision_at: Iterable[int] = (),
    ndcg_at: Iterable[int] = (),
    recall_share_at: Iterable[int] = (),
    reciprocal_rank_at: Iterable[int] = (),
    average_precision: bool = False,
    ties: Ties = "index",
    nmi: bool = False,
    nmi_average: Average = "arithmetic",
    n_clusters: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress | None = None,
    peers: Peers | None = None,
) -> Evaluation:
    """Measure Recall@K, precision@1, R-precision, MAP@R and reciprocal rank exactly, per query and on average.

    A match's rank is 1 + the number of other gallery items before it. With ranks r and R matches: Recall@K =
    [min r ≤ K], R-precision = #{r ≤ R}/R, MAP@R = (1/R) Σ_{r≤R} #{r' ≤ r}/r, reciprocal rank = 1/min r. On request:
    precision@K = #{r ≤ K}/K, AP@K = 1/min(K, R) Σ_{r≤K} #{r' ≤ r}/r, nDCG@K = Σ_{r≤K} grade/log₂(r + 1) over that of
    the best order, AP = (1/R) Σ #{r' ≤ r}/r, and the inverse negative penalty R/max r.

    MAP@R and R-precision: Musgrave, Belongie and Lim, "A Metric Learning Reality Check" (2020), section 3.2.
    Every comparison has the result of float64 arithmetic in one stated order, on every machine and for any
    number of threads: docs/reference/metrics.md of the repository.

    Args:
        embeddings: (Q, D) float16, float32 or float64, finite. They need not be contiguous, normalised or in memory
            (`numpy.memmap`). Tensors, columns and blocks are taken, too: docs/reference/arrays.md.
        labels: (Q,) integers of any width, booleans or strings, also a table's column of text (pandas, polars, Arrow).
            An item matches a query if both have the same label.
        gallery: (G, D), any of the same dtypes. None: the queries are their own gallery, and each leaves itself out by
            its index. With a gallery no item is left out.
        gallery_labels: (G,), of the labels' kind. Given if and only if `gallery` and `labels` are.
        groups: (Q,) integers, booleans or strings, such as cameras: a gallery item with the query's label and group is
            left out of its ranking, as if it weren't in the gallery (the rule of re-identification).
        gallery_groups: (G,), of the groups' kind. Given if and only if `gallery` and `groups` are.
        relevant: the matches of each query, instead of labels: ``(offsets, indices)``, (Q + 1,) and (M,) integers;
            ``indices[offsets[q]:offsets[q + 1]]`` are gallery items. ``(offsets, indices, grades)`` grades them by
            (M,) numbers of at least 0, the gains of nDCG; grade 0 is no match. See `relevance_from_labels`.
        ignored: items left out of each query's ranking, listed as in `relevant`: neither matches nor others.
        indices: (Q,) the index of each query in the gallery, by which it is left out, and -1 for queries outside it.
        junk: a label, or labels, of items that are left out of the gallery and, if they are their own gallery, of the
            queries.
        distractors: a label, or labels, of items that match nothing, but remain in the rankings.
        unmatched: what a query without a match counts as. ``"skip"``: nothing, its values are NaN; ``"zero"``: a miss,
            all of its values are 0.
        similarity: ``"cosine"``, ``"dot"``, or ``"euclidean"`` (the nearest is the most similar).
        recall_at: every K, at least 1. A K beyond the gallery's size means the whole gallery.
        precision_at: every K of precision@K.
        average_precision_at: every K of AP@K.
        ndcg_at: every K of nDCG@K.
        recall_share_at: every K of the share of matches found, #{r ≤ K}/R, the recall of information retrieval.
        reciprocal_rank_at: every K of the reciprocal rank that is 0 without a match among the K nearest (MRR@K).
        average_precision: whether to measure average precision and the inverse negative penalty, which need the rank of
            every match and so take longer.
        ties: the order of equally similar items. ``"index"``: lower gallery index first; ``"optimistic"``: matches
            first; ``"pessimistic"``: non-matches first; ``"expected"``: every metric is its mean over all orders of the
            tied items.
        nmi: whether to cluster all embeddings (queries and gallery) and compare the clusters with the labels by NMI,
            AMI and ARI. Under the cosine, embeddings are scaled to length 1 first.
        nmi_average: average of the entropies in the NMI, see `dml_eval_rs.nmi`.
        n_clusters: number of clusters for `nmi`; None for the number of distinct labels.
        seed: seed of the clustering, 0 to 2**64 - 1.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.
        progress: called as ``progress(done, total)``, in pairs compared, several times a second. With `nmi` the total
            grows during the clustering.
        peers: processes that share the work: all make this call with the same arrays, and all get the bits of a single
            process.

    Returns:
        The means over the queries with a match (R ≥ 1; with ``unmatched="zero"`` over all), and the values of every
        query.

    Raises:
        TypeError: if an array has the wrong kind of dtype, such as integers for embeddings or floats for labels.
        ValueError: if shapes don't match or are empty, a number isn't finite (the message names the first such row), a
            row is all zeros under the cosine, an argument is out of range, no query has a match, or the peers' arrays
            differ.
        KeyboardInterrupt: within a second of Ctrl-C.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import evaluate
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> result = evaluate(x, ["cat", "cat", "dog", "dog", "dog"], recall_at=(1, 2))
        >>> result.recall
        {1: 0.8, 2: 0.8}
        >>> result.per_query["recall@1"].tolist()
        [1.0, 1.0, 1.0, 1.0, 0.0]
    """
    arguments.one_of(similarity, "similarity", SIMILARITIES)
    arguments.one_of(ties, "ties", TIES)
    arguments.one_of(unmatched, "unmatched", UNMATCHED)
    arguments.one_of(nmi_average, "nmi_average", AVERAGES)
    metrics = metric_names(
        recall_at,
        precision_at,
        average_precision_at,
        ndcg_at,
        average_precision,
        recall_share_at,
        reciprocal_rank_at,
    )
    checked_threads, checked_seed = arguments.threads(threads), arguments.seed(seed)
    check_labels_of_gallery(gallery, gallery_labels, relevant, "gallery")
    queries_QD, gallery_GD = arguments.both_sides(embeddings, "embeddings", gallery, "gallery")
    arguments.warn_of_own_gallery(queries_QD, gallery_GD, "embeddings", "gallery", (indices, groups, ignored))
    relation = relate(
        queries_QD,
        "embeddings",
        labels,
        gallery_GD,
        "gallery",
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
    if n_clusters is not None and not nmi:
        raise ValueError(f"n_clusters is {n_clusters} but nmi is False; expected nmi=True, or no n_clusters")
    if nmi_average != "arithmetic" and not nmi:
        raise ValueError(
            f"nmi_average is {nmi_average!r} but nmi is False; expected nmi=True, or no nmi_average"
        )
    if n_clusters is not None:
        check_clusters(n_clusters, len(queries_QD) + (0 if gallery_GD is None else len(gallery_GD)))
    if nmi and (relation.labels is None or relation.kept is not None or np.size(distractors)):
        raise ValueError(
            "nmi compares clusters with the labels of all items; expected labels without relevant, junk or distractors"
        )
    options = (similarity, metrics, ties, unmatched, nmi, nmi_average, n_clusters, checked_seed)
    check_alike(peers, options, queries_QD, gallery_GD, *relation.arrays())
    stages = None if progress is None else _Stages(progress)
    (found,) = _native.evaluate(
        queries_QD,
        gallery_GD,
        relation,
        similarity=similarity,
        metrics=metrics,
        ties=[ties],
        zero_unmatched=unmatched == "zero",
        threads=checked_threads,
        progress=None if stages is None else stages.next(),
        peers=peers,
    )
    agreement = None
    if nmi and relation.labels is not None:
        parts = [(queries_QD, relation.labels)]
        if gallery_GD is not None and relation.gallery_labels is not None:
            parts.append((gallery_GD, relation.gallery_labels))
        agreement = cluster_agreement(
            parts,
            normalize=similarity == "cosine",
            average=nmi_average,
            n_clusters=n_clusters,
            seed=checked_seed,
            threads=checked_threads,
            progress=None if stages is None else stages.next(),
            peers=peers,
        )
    items = queries_QD if gallery_GD is None else gallery_GD
    return evaluation_of(
        found, len(items), agreement, relation.kept if gallery is None else None, len(queries_QD)
    )


def evaluate_codes(
    codes: npt.ArrayLike,
    labels: npt.ArrayLike | None = None,
    gallery_codes: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    *,
    groups: npt.ArrayLike | None = None,
    gallery_groups: npt.ArrayLike | None = None,
    relevant: Lists | GradedLists | None = None,
    ignored: Lists | None = None,
    indices: npt.ArrayLike | None = None,
    junk: npt.ArrayLike = (),
    distractors: npt.ArrayLike = (),
    unmatched: Unmatched = "skip",
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
) -> Evaluation:
    """Measure the metrics of `evaluate` for binary codes under the Hamming distance.

    distance(a, b) = the number of differing bits. Ties are frequent, so choose `ties` with care.

    Args:
        codes: (Q, W) uint8, eight bits per byte, at most 65,536 bits per code: see `binarize`.
        labels: (Q,) integers of any width, booleans or strings.
        gallery_codes: (G, W) uint8; None: the queries are their own gallery, and each leaves itself out by its index.
        gallery_labels: (G,), of the labels' kind. Given if and only if `gallery_codes` and `labels` are.
        groups, gallery_groups, relevant, ignored, indices, junk, distractors, unmatched: as in `evaluate`.
        recall_at, precision_at, average_precision_at, ndcg_at, recall_share_at, reciprocal_rank_at: as in `evaluate`.
        average_precision, ties: as in `evaluate`.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.
        progress: called as ``progress(done, total)``, in pairs compared.
        peers: as in `evaluate`.

    Returns:
        As `evaluate`; `nmi`, `ami` and `ari` are None.

    Raises:
        TypeError: if codes aren't uint8, or labels are floats.
        ValueError: if shapes don't match or are empty, a code is too wide, or no query has a match.
        KeyboardInterrupt: within a second of Ctrl-C.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import binarize, evaluate_codes
        >>> codes = binarize(np.array([[1.0, 1.0], [1.0, 1.0], [-1.0, 1.0], [-1.0, 1.0]]))
        >>> evaluate_codes(codes, [0, 0, 1, 1], recall_at=1).recall
        {1: 1.0}
    """
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
    check_labels_of_gallery(gallery_codes, gallery_labels, relevant, "gallery_codes")
    codes_QW, gallery_GW = arguments.both_sides(
        codes, "codes", gallery_codes, "gallery_codes", are_codes=True
    )
    arguments.warn_of_own_gallery(codes_QW, gallery_GW, "codes", "gallery_codes", (indices, groups, ignored))
    relation = relate(
        codes_QW,
        "codes",
        labels,
        gallery_GW,
        "gallery_codes",
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
    check_alike(peers, (metrics, ties, unmatched), codes_QW, gallery_GW, *relation.arrays())
    n_queries = len(codes_QW)
    n_gallery = len(codes_QW if gallery_GW is None else gallery_GW)
    if relation.kept is not None and gallery_GW is None:
        codes_QW = codes_QW[relation.kept]
    elif relation.kept is not None and gallery_GW is not None:
        gallery_GW = gallery_GW[relation.kept]
    (found,) = _native.evaluate_codes(
        codes_QW,
        gallery_GW,
        relation,
        metrics=metrics,
        ties=[ties],
        zero_unmatched=unmatched == "zero",
        threads=checked_threads,
        progress=progress,
        peers=peers,
    )
    return evaluation_of(found, n_gallery, None, relation.kept if gallery_GW is None else None, n_queries)


def binarize(embeddings: npt.ArrayLike, threshold: float = 0.0) -> npt.NDArray[np.uint8]:
    """Binarize embeddings: one bit per number, set where the number is above the threshold.

    bit_d = [x_d > threshold], packed most significant bit first, as `numpy.packbits` does; the last byte is
    padded with zeros. Zhai and Wu, "Making Classification Competitive for Deep Metric Learning" (2019),
    section 3.4, with threshold 0.

    Args:
        embeddings: (n, D) float16, float32 or float64, finite; n may be 0.
        threshold: any number.

    Returns:
        (n, ceil(D / 8)) uint8.

    Raises:
        TypeError: if the embeddings aren't floats, or the threshold is no number.
        ValueError: if a number isn't finite, or the array isn't two-dimensional or has no columns.

    Example:
        >>> from dml_eval_rs import binarize
        >>> binarize([[0.5, -1.0, 2.0]]).tolist()  # the bits 101, and five of padding
        [[160]]
    """
    checked = arguments.embeddings(embeddings, "embeddings", may_be_empty=True)
    try:
        return _native.binarize(checked, float(threshold))
    except (TypeError, OverflowError) as error:
        raise TypeError(
            f"threshold is a {type(threshold).__name__}; expected a number that a float holds"
        ) from error


def check_labels_of_gallery(gallery: object, gallery_labels: object, relevant: object, name: str) -> None:
    """Check that a gallery comes with its labels, or with lists of matches, and labels with their gallery."""
    if relevant is None and (gallery is None) != (gallery_labels is None):
        given, missing = (name, "gallery_labels") if gallery_labels is None else ("gallery_labels", name)
        raise ValueError(
            f"{given} came without {missing}; expected both, or neither to make the queries their own gallery"
        )


class _Stages:
    """Adapter that joins the progress of several computations, each of which counts from 0."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._total = 0

    def next(self) -> Progress:
        """Return the callback of the next computation."""
        before = self._total

        def report(done: int, total: int) -> None:
            self._total = before + total
            self._progress(before + done, before + total)

        return report

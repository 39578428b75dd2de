"""Retrieval metrics of embeddings and of binary codes.

Shapes: `Q` queries, `G` gallery, `D` dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.clustering import AVERAGES, Agreement, Average, check_clusters, cluster_agreement
from dml_eval_rs.evaluation import Evaluation
from dml_eval_rs.peers import Peers, check_alike

Similarity = Literal["cosine", "dot", "euclidean"]
Ties = Literal["index", "optimistic", "pessimistic", "expected"]
Progress = Callable[[int, int], object]

SIMILARITIES = ("cosine", "dot", "euclidean")
TIES = ("index", "optimistic", "pessimistic", "expected")


def evaluate(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    *,
    similarity: Similarity = "cosine",
    recall_at: Iterable[int] = (1, 10, 100, 1000),
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

    A positive's rank is 1 + the number of other gallery items before it. With ranks r and R positives: Recall@K =
    [min r ≤ K], R-precision = #{r ≤ R}/R, MAP@R = (1/R) Σ_{r≤R} #{r' ≤ r}/r, reciprocal rank = 1/min r.

    MAP@R and R-precision: Musgrave, Belongie and Lim, "A Metric Learning Reality Check" (2020), section 3.2.
    Every comparison has the result of float64 arithmetic in one stated order, on every machine and for any
    number of threads: docs/reference/metrics.md of the repository.

    Args:
        embeddings: (Q, D) float16, float32 or float64, finite. They need not be contiguous, normalised or in memory
            (`numpy.memmap`). A torch tensor on the CPU is taken without its gradient; bfloat16 becomes float32.
        labels: (Q,) integers of any width, booleans or strings, also a table's column of text (pandas, polars, Arrow).
        gallery: (G, D), any of the same dtypes. None: the queries are their own gallery, and each leaves itself out by
            its index. With a gallery no item is left out.
        gallery_labels: (G,), of the labels' kind. Given if and only if `gallery` is.
        similarity: ``"cosine"``, ``"dot"``, or ``"euclidean"`` (the nearest is the most similar).
        recall_at: every K, at least 1. A K beyond the gallery's size means the whole gallery.
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
        The means over the queries with a match (R ≥ 1), and the values of every query.

    Raises:
        TypeError: if an array has the wrong kind of dtype, such as integers for embeddings or floats for labels.
        ValueError: if shapes don't match or are empty, a number isn't finite (the message names the first such row), a
            row is all zeros under the cosine, an argument is out of range, no query has a match, or the peers' arrays
            differ.
        KeyboardInterrupt: within a second of Ctrl-C.
    """
    arguments.one_of(similarity, "similarity", SIMILARITIES)
    arguments.one_of(ties, "ties", TIES)
    arguments.one_of(nmi_average, "nmi_average", AVERAGES)
    ks = arguments.counts(recall_at, "recall_at")
    checked_threads, checked_seed = arguments.threads(threads), arguments.seed(seed)
    queries_QD = arguments.embeddings(embeddings, "embeddings", "queries")
    labels_Q = arguments.labels(labels, "labels", queries_QD, "embeddings")
    _both_or_neither(gallery, gallery_labels, "gallery")
    gallery_GD = code_G = None
    if gallery is None or gallery_labels is None:
        (code_Q,) = arguments.encode(labels_Q)
    else:
        gallery_GD = arguments.embeddings(gallery, "gallery", "items")
        arguments.same_width(gallery_GD, "gallery", queries_QD, "embeddings")
        labels_G = arguments.labels(gallery_labels, "gallery_labels", gallery_GD, "gallery")
        code_Q, code_G = arguments.encode(labels_Q, labels_G)
    arguments.warn_of_own_gallery(queries_QD, gallery_GD, "embeddings", "gallery")
    if n_clusters is not None and not nmi:
        raise ValueError(f"n_clusters is {n_clusters} but nmi is False; expected nmi=True, or no n_clusters")
    if nmi_average != "arithmetic" and not nmi:
        raise ValueError(
            f"nmi_average is {nmi_average!r} but nmi is False; expected nmi=True, or no nmi_average"
        )
    if n_clusters is not None:
        check_clusters(n_clusters, len(queries_QD) + (0 if gallery_GD is None else len(gallery_GD)))
    options = (similarity, ks, ties, nmi, nmi_average, n_clusters, checked_seed)
    check_alike(peers, options, queries_QD, gallery_GD, code_Q, code_G)
    stages = None if progress is None else _Stages(progress)
    columns = _native.evaluate(
        queries_QD,
        code_Q,
        gallery_GD,
        code_G,
        similarity=similarity,
        recall_at=ks,
        ties=ties,
        threads=checked_threads,
        progress=None if stages is None else stages.next(),
        peers=peers,
    )
    agreement = None
    if nmi:
        parts = [(queries_QD, code_Q)]
        if gallery_GD is not None and code_G is not None:
            parts.append((gallery_GD, code_G))
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
    return evaluation_of(columns, ks, len(items), agreement)


def evaluate_codes(
    codes: npt.ArrayLike,
    labels: npt.ArrayLike,
    gallery_codes: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    *,
    recall_at: Iterable[int] = (1, 10, 100, 1000),
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
        gallery_labels: (G,), of the labels' kind. Given if and only if `gallery_codes` is.
        recall_at: every K, at least 1.
        ties: as in `evaluate`.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.
        progress: called as ``progress(done, total)``, in pairs compared.
        peers: as in `evaluate`.

    Returns:
        As `evaluate`; `nmi`, `ami` and `ari` are None.

    Raises:
        TypeError: if codes aren't uint8, or labels are floats.
        ValueError: if shapes don't match or are empty, a code is too wide, or no query has a match.
        KeyboardInterrupt: within a second of Ctrl-C.
    """
    arguments.one_of(ties, "ties", TIES)
    ks = arguments.counts(recall_at, "recall_at")
    checked_threads = arguments.threads(threads)
    codes_QW = arguments.codes(codes, "codes")
    labels_Q = arguments.labels(labels, "labels", codes_QW, "codes")
    _both_or_neither(gallery_codes, gallery_labels, "gallery_codes")
    gallery_GW = code_G = None
    if gallery_codes is None or gallery_labels is None:
        (code_Q,) = arguments.encode(labels_Q)
    else:
        gallery_GW = arguments.codes(gallery_codes, "gallery_codes")
        arguments.same_width(gallery_GW, "gallery_codes", codes_QW, "codes")
        labels_G = arguments.labels(gallery_labels, "gallery_labels", gallery_GW, "gallery_codes")
        code_Q, code_G = arguments.encode(labels_Q, labels_G)
    arguments.warn_of_own_gallery(codes_QW, gallery_GW, "codes", "gallery_codes")
    check_alike(peers, (ks, ties), codes_QW, gallery_GW, code_Q, code_G)
    columns = _native.evaluate_codes(
        codes_QW,
        code_Q,
        gallery_GW,
        code_G,
        recall_at=ks,
        ties=ties,
        threads=checked_threads,
        progress=progress,
        peers=peers,
    )
    return evaluation_of(columns, ks, len(codes_QW if gallery_GW is None else gallery_GW))


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
    """
    checked = arguments.embeddings(embeddings, "embeddings", may_be_empty=True)
    try:
        return _native.binarize(checked, float(threshold))
    except (TypeError, OverflowError) as error:
        raise TypeError(
            f"threshold is a {type(threshold).__name__}; expected a number that a float holds"
        ) from error


def _both_or_neither(gallery: object, gallery_labels: object, name: str) -> None:
    if (gallery is None) != (gallery_labels is None):
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


def evaluation_of(
    columns: list[tuple[str, npt.NDArray[np.float64], float]],
    recall_at: list[int],
    n_gallery: int,
    agreement: Agreement | None = None,
) -> Evaluation:
    """Build the result from the core's columns: name, every query's value, mean."""
    means = {name: mean for name, _, mean in columns}
    per_query = {name: values for name, values, _ in columns}
    return Evaluation(
        recall={k: means[f"recall@{k}"] for k in recall_at},
        precision_at_1=means["precision_at_1"],
        r_precision=means["r_precision"],
        map_at_r=means["map_at_r"],
        mean_reciprocal_rank=means["reciprocal_rank"],
        nmi=None if agreement is None else agreement.nmi,
        ami=None if agreement is None else agreement.ami,
        ari=None if agreement is None else agreement.ari,
        n_queries=len(per_query["reciprocal_rank"]),
        n_unmatched=int(np.isnan(per_query["reciprocal_rank"]).sum()),
        per_query=per_query,
        n_gallery=n_gallery,
    )

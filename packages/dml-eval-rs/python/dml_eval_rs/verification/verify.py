"""Verification: how well a threshold tells pairs of one label from pairs of two, over all pairs or given ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Progress, Similarity
from dml_eval_rs.matches.labels import Labels
from dml_eval_rs.peers import Peers, check_alike
from dml_eval_rs.verification.by_identity import Identities
from dml_eval_rs.verification.pairs import verify_pairs
from dml_eval_rs.verification.rates import (
    accepted_at_most,
    check_numbers,
    measure_crossings,
    measure_distances,
)
from dml_eval_rs.verification.result import Verification
from dml_eval_rs.verification.sides import check_asked, check_sides

DEFAULT = ("tar@far=1e-1", "tar@far=1e-2", "tar@far=1e-3", "tar@far=1e-4", "eer", "auc")


def verify(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike | Labels,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | Labels | None = None,
    *,
    metrics: str | Iterable[str] = DEFAULT,
    similarity: Similarity = "cosine",
    pairs: npt.ArrayLike | None = None,
    folds: int | npt.ArrayLike | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    peers: Peers | None = None,
) -> Verification:
    """Measure exactly how well thresholds accept pairs of one label (positive) and reject others (negative).

    A pair is accepted if its score is at least the threshold. ``"tar@far=X"``: the largest share of positives accepted
    by any threshold that accepts a share of negatives of at most X. ``"eer"``: where the ROC curve, its points joined
    by straight lines, meets TAR = 1 − FAR. ``"auc"``: the area under these lines, P(positive > negative) + P(equal)/2.

    All follow from one float64 score of each pair, the same on every machine and for any number of threads:
    docs/reference/verification.md of the repository. Memory doesn't grow with the negatives.

    Args:
        embeddings: (Q, D) float16, float32 or float64, finite; with ``similarity="hamming"`` (Q, W) uint8 codes, eight
            bits per byte, see `binarize`.
        labels: (Q,) integers of any width, booleans or strings, or `Labels`: pairs with the same label and the same
            group are left out, as re-identification leaves out images of one camera; junk is in no pair; a
            distractor's label equals no other.
        gallery: (G, D) or (G, W); None: each unordered pair of two distinct embeddings is compared once. With a gallery
            every embedding is compared with every item of it.
        gallery_labels: (G,), of the labels' kind. Given if and only if `gallery` is.
        metrics: names, each ``"tar@far=X"`` for X above 0 and below 1, ``"eer"``, ``"auc"`` or, with folds,
            ``"accuracy"``, which folds add by themselves. Over all pairs of floats the AUC takes several times as long
            as the others together, and EER and AUC hold the positives' scores, of at most 2**22 pairs.
        similarity: ``"cosine"``, ``"dot"``, ``"euclidean"`` (minus the squared distance) or ``"hamming"`` (minus the
            number of differing bits).
        pairs: (M, 2) integers, an embedding and an item of the gallery (or another embedding): only these are compared,
            each as often as it is given. None: all.
        folds: number of folds of the given pairs, in order, or (M,) the fold of each: measures ``"accuracy"``, that of
            each fold at the threshold that is best on the others (LFW's protocol, with 10 folds). Needs `pairs`.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.
        progress: called as ``progress(done, total)``, in pairs compared; the total grows from one step to the next.
        peers: processes that share the comparison of all pairs: all make this call with the same arrays, and all get
            the bits of a single process.

    Returns:
        The metrics, in the order asked. The result keeps the embeddings, for `confidence_interval` and `compare`.

    Raises:
        TypeError: if an array has the wrong kind of dtype.
        ValueError: if shapes don't match or are empty, a number isn't finite, a row is all zeros under the cosine, a
            metric is unknown, a pair names an absent item or one twice, no pair is positive or none is negative, or the
            peers' arrays differ.
        KeyboardInterrupt: within a second of Ctrl-C.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import verify
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> found = verify(x, [0, 0, 1, 1, 1], metrics=("auc", "eer"))
        >>> round(found["auc"], 4), round(found["eer"], 4)
        (0.8333, 0.3333)
    """
    arguments.one_of(similarity, "similarity", arguments.SIMILARITIES)
    asked = check_asked(metrics, in_folds=folds is not None)
    threads = arguments.threads(threads)
    if folds is not None and pairs is None:
        raise ValueError("folds came without pairs; expected both, since folds divide given pairs")
    if pairs is not None and peers is not None:
        raise ValueError("peers came with pairs, whose scores one process computes; expected one of them")
    sides = check_sides(embeddings, labels, gallery, gallery_labels, similarity)
    if pairs is not None:
        return verify_pairs(sides, similarity, pairs, folds, asked, threads)
    n_positive, n_negative = sides.count_pairs()
    check_numbers(n_positive, n_negative)
    arrays = sides.queries, sides.labels, sides.gallery, sides.gallery_labels
    check_alike(peers, (similarity, asked.names), *arrays, sides.groups, sides.gallery_groups)
    options: Any = {"groups": sides.groups, "gallery_groups": sides.gallery_groups}
    options |= {"threads": threads, "progress": progress, "peers": peers}
    if similarity == "hamming":
        found = measure_distances(*_native.count_distances(*arrays, **options), asked)
    else:
        points, slots = _native.verify(
            *arrays,
            **options,
            similarity=similarity,
            positives=n_positive,
            negatives=n_negative,
            ranks=[accepted_at_most(share, n_negative) + 1 for share in asked.shares],
            equal_errors="eer" in asked.names,
            slots="auc" in asked.names,
        )
        found = measure_crossings(points, slots, asked, n_positive, n_negative)
    return replace(found, _identities=Identities(sides, similarity, threads))

"""Verification of floats and codes, compared with the slow reference in rational arithmetic and
with scikit-learn.
"""

from __future__ import annotations

import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest
from eval_support import verification_reference as reference
from eval_support.peers import run_together
from eval_support.scores_reference import score
from eval_support.small_rows import small_rows
from eval_support.trial import trial
from hypothesis import assume, given
from hypothesis import strategies as st

import dml_eval_rs._native as _native
from dml_eval_rs import Labels, Relevance, Verification, binarize, verify

KERNELS = _native.kernels()
FLOATS = ("cosine", "dot", "euclidean")
SIMILARITIES = (*FLOATS, "hamming")
FAR = {f"tar@far={far!r}": far for far in (0.9, 0.5, 1 / 3, 0.3, 0.1, 1e-3)}
METRICS = [*FAR, "eer", "auc", "micro_ap"]
# If the sample and the capacity are this small, brackets are wrong, lists overflow, and float64
# must decide.
SIZES = [(None, None), (1, None), (3, 5), (20, 1), (1, 200), (20, 200)]
X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
LABELS = np.arange(40) % 8


def run_with(options: dict[str, Any], *arguments: Any, **names: Any) -> Verification:
    with trial(**options):
        return verify(*arguments, **names)


def draw_labels(
    data: st.DataObject, rows: int, *, grouped: bool, junk: bool
) -> tuple[Labels, list[Any]]:
    """Draw labels, and convert these for the reference: None for junk, and a distinct label per
    distractor.
    """

    def draw(most: int) -> list[int]:
        drawn: list[int] = data.draw(st.lists(st.integers(0, most), min_size=rows, max_size=rows))
        return drawn

    ids, groups = draw(4), draw(1) if grouped else None
    special: dict[str, Any] = {"distractors": [3]}
    if junk:
        special["junk"] = 4
    plain = [None if i == 4 and junk else (object() if i == 3 else i) for i in ids]
    return Labels(ids, groups, **special), plain


def assert_measured(found: Verification, positives: list[float], negatives: list[float]) -> None:
    assert (found.n_positive, found.n_negative) == (len(positives), len(negatives))
    expected = {name: reference.tar_at(far, positives, negatives) for name, far in FAR.items()}
    eer = reference.equal_error_rate(positives, negatives)
    assert {name: found[name] for name in FAR} == {name: tar for name, (tar, _) in expected.items()}
    assert found.thresholds == {**{name: t for name, (_, t) in expected.items()}, "eer": eer[1]}
    assert found["eer"] == eer[0]
    assert found["auc"] == reference.area(positives, negatives)
    # A sum of rounded products.
    assert found["micro_ap"] == pytest.approx(reference.micro_ap(positives, negatives), abs=1e-14)
    assert found.roc is not None
    # Corners on a straight part of the curve are omitted, so our corners must be a subset, in the
    # same order.
    curve = list(zip(found.roc.far.tolist(), found.roc.tar.tolist()))
    every = [(float(far), float(tar)) for far, tar, _ in reference.corners(positives, negatives)]
    assert curve == sorted(set(curve))
    assert set(curve) <= set(every)
    assert (curve[0], curve[-1]) == ((0.0, 0.0), (1.0, 1.0))
    for far, tar, threshold in zip(found.roc.far, found.roc.tar, found.roc.threshold):
        assert far == float(reference.share(negatives, threshold))
        assert tar == float(reference.share(positives, threshold))
    area = np.trapezoid(found.roc.tar, found.roc.far) if hasattr(np, "trapezoid") else found["auc"]
    assert area == pytest.approx(found["auc"], abs=1e-12)  # sums of rounded products


@pytest.mark.parametrize("similarity", SIMILARITIES)
@given(data=st.data())
def test_all_pairs_are_measured_as_by_the_reference(similarity: Any, data: Any) -> None:
    dim = data.draw(st.sampled_from([1, 2, 3, 9]))
    grouped, has_gallery = data.draw(st.booleans()), data.draw(st.booleans())
    sides = []
    for is_last in (False, True) if has_gallery else (True,):
        rows = data.draw(small_rows(dim, similarity=similarity))
        sides.append((rows, *draw_labels(data, len(rows), grouped=grouped, junk=is_last)))
    arguments = [part for rows, labels, _ in sides for part in (rows, labels)]
    kept = [
        np.array([i for i, of in enumerate(plain) if of is not None], int) for _, _, plain in sides
    ]
    if not all(map(len, kept)):
        with pytest.raises(ValueError, match="all items are junk"):
            verify(*arguments, similarity=similarity)
        return
    plain = [
        (rows[at], [of[i] for i in at], labels.groups[at] if grouped else None)
        for (rows, labels, of), at in zip(sides, kept)
    ]
    (x, ids, groups), (gallery, gallery_ids, gallery_groups) = [*plain, (None, None, None)][:2]
    positives, negatives = reference.all_pairs(
        x, ids, gallery, gallery_ids, groups, gallery_groups, similarity
    )
    names: dict[str, Any] = {"metrics": METRICS, "similarity": similarity}
    if not positives or not negatives:
        with pytest.raises(ValueError, match="expected at least one"):
            verify(*arguments, **names)
        return
    sample, capacity = data.draw(st.sampled_from(SIZES))
    for kernel in KERNELS:
        options = {"kernel": kernel, "verify_sample": sample, "verify_listed": capacity}
        assert_measured(
            run_with(options, *arguments, **names, threads=data.draw(st.integers(1, 2))),
            positives,
            negatives,
        )


@pytest.mark.parametrize("similarity", SIMILARITIES)
@given(data=st.data())
def test_given_pairs_are_measured_as_by_the_reference(similarity: Any, data: Any) -> None:
    x = data.draw(small_rows(data.draw(st.sampled_from([1, 2, 9])), similarity=similarity))
    labels, plain = draw_labels(
        data, len(x), grouped=data.draw(st.booleans()), junk=data.draw(st.booleans())
    )
    place = st.integers(0, len(x) - 1)
    pairs = data.draw(
        st.lists(st.tuples(place, place).filter(lambda p: p[0] != p[1]), min_size=2, max_size=30)
    )
    folds = data.draw(st.lists(st.integers(0, 3), min_size=len(pairs), max_size=len(pairs)))
    assume(any(of is not None for of in plain))
    groups = labels.groups
    kept = [
        at
        for at, (i, j) in enumerate(pairs)
        if plain[i] is not None
        and plain[j] is not None
        and (plain[i] != plain[j] or groups is None or groups[i] != groups[j])
    ]
    positive = [bool(plain[pairs[at][0]] == plain[pairs[at][1]]) for at in kept]
    scores = [score(x[pairs[at][0]], x[pairs[at][1]], similarity) for at in kept]
    kept_folds = [folds[at] for at in kept]
    names: dict[str, Any] = {"similarity": similarity, "metrics": METRICS, "pairs": pairs}
    if len(set(positive)) < 2 or len(set(kept_folds)) < 2:
        with pytest.raises(ValueError, match="expected at least"):
            verify(x, labels, folds=folds, **names)
        return
    found = verify(x, labels, folds=folds, **names)
    assert_measured(
        found,
        [s for s, p in zip(scores, positive) if p],
        [s for s, p in zip(scores, positive) if not p],
    )
    accuracies, thresholds, mean = reference.fold_accuracies(scores, positive, kept_folds)
    assert found.fold_accuracy is not None
    assert found.fold_threshold is not None
    assert found.fold_accuracy.tolist() == accuracies
    assert found.fold_threshold.tolist() == thresholds
    assert found["accuracy"] == mean


def noisy(rows: int, dim: int, dtype: type, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows in classes; kind "ties" makes them small integers, and kind "twins" repeats
    rows.
    """
    rng = np.random.default_rng(5)
    labels = rng.integers(0, rows // 6, rows)
    x = rng.normal(size=(rows, dim))[labels] + 1.2 * rng.normal(size=(rows, dim))
    if kind == "ties":
        x = np.clip(np.rint(x), -1, 1)
        x[:, 0] = 1
    if kind == "twins":
        x = x[rng.integers(0, rows // 4, rows)]
    return x.astype(dtype), labels


@pytest.mark.parametrize("kind", ["distinct", "ties", "twins"])
@pytest.mark.parametrize("similarity", FLOATS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_kernel_size_and_thread_count_gives_the_same_bits(
    similarity: Any, dtype: type, kind: str
) -> None:
    x, labels = noisy(700, 19, dtype, kind)
    expected = None
    for gallery, gallery_labels in ((None, None), (x[350:], labels[350:])):
        results = []
        queries, codes = (x, labels) if gallery is None else (x[:350], labels[:350])
        sizes = ((1, None, None), (2, 4000, None), (3, 2000, 20_000), (2, 900, 900))
        for kernel, (threads, sample, capacity) in itertools.product(KERNELS, sizes):
            options = {"kernel": kernel, "verify_sample": sample, "verify_listed": capacity}
            sides = queries, codes, gallery, gallery_labels
            found = run_with(options, *sides, similarity=similarity, threads=threads)
            assert found.roc is not None
            results.append(
                (found.to_dict(), found.roc.far.tobytes(), found.roc.threshold.tobytes())
            )
        assert all(result == results[0] for result in results)
        expected = expected or results[0]
    i, j = np.triu_indices(len(x), 1)
    given = verify(x, labels, pairs=np.stack([i, j], 1), similarity=similarity)
    assert given.to_dict() == expected[0]


@pytest.mark.parametrize("kind", ["distinct", "ties", "twins"])
@pytest.mark.parametrize("similarity", FLOATS)
def test_rates_are_those_of_scikit_learn_on_the_same_scores(similarity: Any, kind: str) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="compares with scikit-learn")
    x, labels = noisy(300, 16, np.float32, kind)
    i, j = np.triu_indices(len(x), 1)
    scores = _native.pair_scores(
        x, None, np.stack([i, j], 1).astype(np.uint32), similarity=similarity
    )
    found = verify(x, labels, similarity=similarity, metrics=METRICS)
    fpr, tpr, thresholds = metrics.roc_curve(
        labels[i] == labels[j], scores, drop_intermediate=False
    )
    for name, far in FAR.items():
        assert found[name] == tpr[fpr <= far].max()
        assert thresholds[fpr <= far].min() >= found.thresholds[name] > thresholds[fpr > far].max()
    # scikit-learn adds rounded areas, and finds the crossing on rounded corners.
    matches = labels[i] == labels[j]
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(matches, scores), abs=1e-12)
    assert found["micro_ap"] == pytest.approx(
        metrics.average_precision_score(matches, scores), abs=1e-12
    )
    at = int(np.argmax(fpr + tpr >= 1))
    part = (1 - fpr[at - 1] - tpr[at - 1]) / (fpr[at] + tpr[at] - fpr[at - 1] - tpr[at - 1])
    assert found["eer"] == pytest.approx(fpr[at - 1] + part * (fpr[at] - fpr[at - 1]), abs=1e-12)
    assert found.roc is not None
    np.testing.assert_allclose(np.interp(fpr, found.roc.far, found.roc.tar) >= tpr - 1e-12, True)


@pytest.mark.parametrize("sizes", SIZES)
def test_a_threshold_after_ties_at_zero_is_the_least_number_above_it(sizes: Any) -> None:
    """Check that brackets which shrink towards zero from below do not end with minus zero."""
    x = np.array([[2.0], [2.0], [-2.0], [2.0]], np.float16)
    options = dict(zip(("verify_sample", "verify_listed"), sizes))
    found = run_with(options, x, [0, 1, 0, 0], similarity="euclidean", metrics="tar@far=0.5")
    assert found.thresholds == {"tar@far=0.5": 5e-324}


def test_the_metrics_asked_for_are_measured_in_their_order() -> None:
    every = verify(X, LABELS)
    assert list(every) == [f"tar@far=1e-{i}" for i in (1, 2, 3, 4)] + ["eer", "auc"]
    tar = verify(X, LABELS, metrics="tar@far=1e-1")
    assert (dict(tar), tar.roc) == ({"tar@far=1e-1": every["tar@far=1e-1"]}, None)
    some = verify(X, LABELS, metrics=("auc", "eer", "tar@far=0.1", "tar@far=1e-1", "auc"))
    assert list(some) == ["auc", "eer", "tar@far=0.1", "tar@far=1e-1"]
    assert some["tar@far=0.1"] == some["tar@far=1e-1"] == every["tar@far=1e-1"]
    assert (some["auc"], some["eer"]) == (every["auc"], every["eer"])
    assert list(some.thresholds) == ["eer", "tar@far=0.1", "tar@far=1e-1"]
    assert list(verify(X, LABELS, pairs=[[0, 8], [0, 1], [1, 2]], folds=2, metrics="eer")) == [
        "eer",
        "accuracy",
    ]
    with pytest.raises(
        KeyError, match="no metric 'eer' was measured; expected one of tar@far=1e-1"
    ):
        tar["eer"]


def test_results_are_flat_and_equal_if_their_values_are() -> None:
    found = verify(X, LABELS, metrics=("tar@far=0.1", "eer"))
    assert found.to_dict() == {
        **found,
        "threshold/tar@far=0.1": found.thresholds["tar@far=0.1"],
        "threshold/eer": found.thresholds["eer"],
        "n_positive": 80,
        "n_negative": 700,
    }
    assert found == verify(X, LABELS, metrics=("tar@far=0.1", "eer"))
    assert found != verify(X, LABELS, metrics=("eer", "tar@far=0.1"))
    assert found != verify(X + 1, LABELS, metrics=("tar@far=0.1", "eer"))
    assert found == pickle.loads(pickle.dumps(found))


def test_a_perfect_and_a_useless_similarity() -> None:
    apart = np.repeat(np.eye(4), 3, axis=0)
    perfect = verify(
        apart, np.arange(12) // 3, metrics=("tar@far=0.5", "tar@far=0.01", "eer", "auc")
    )
    assert list(perfect.values()) == [1.0, 1.0, 0.0, 1.0]
    # Any threshold above 0 separates the pairs.
    assert perfect.thresholds["tar@far=0.5"] == perfect.thresholds["tar@far=0.01"] == 5e-324
    same = verify(np.ones((6, 3)), [0, 0, 0, 1, 1, 1])
    assert list(same.values()) == [0.0, 0.0, 0.0, 0.0, 0.5, 0.5]
    assert set(same.thresholds.values()) == {1.0, math.nextafter(1.0, 2.0)}


def test_thresholds_accept_what_range_search_finds() -> None:
    from dml_eval_rs import range_search

    x, labels = noisy(300, 8, np.float32, "ties")
    found = verify(x, labels, metrics=list(FAR))
    for name, threshold in found.thresholds.items():
        offsets, items, _ = range_search(x, None, threshold, exclude_self=True)
        queries = np.repeat(np.arange(300), np.diff(offsets))
        match = labels[queries] == labels[items]
        assert match.sum() / 2 / found.n_positive == found[name]
        assert (~match).sum() / 2 / found.n_negative <= FAR[name]


def test_large_classes_are_counted_from_tables() -> None:
    x, _ = noisy(600, 8, np.float32, "distinct")
    labels = np.repeat([0, 1, 2], [500, 60, 40])
    for groups in (None, np.arange(600) % 7):
        i, j = np.triu_indices(600, 1)
        given = verify(x, Labels(labels, groups), pairs=np.stack([i, j], 1))
        assert verify(x, Labels(labels, groups)) == given


def test_more_positives_than_are_held_are_counted_for_thresholds_alone() -> None:
    x, _ = noisy(3000, 4, np.float32, "distinct")
    labels = (np.arange(3000) >= 2950).astype(int)
    i, j = np.triu_indices(3000, 1)
    names: dict[str, Any] = {"metrics": list(FAR)}
    found = verify(x, labels, **names)
    assert found.n_positive > 2**22
    assert found.to_dict() == verify(x, labels, pairs=np.stack([i, j], 1), **names).to_dict()
    for metric in ("eer", "auc"):
        with pytest.raises(
            ValueError, match=r"4351000 positive pairs; .* at most 4194304: omit 'eer' and 'auc'"
        ):
            verify(x, labels, metrics=[metric])


CODE_LABELS = np.random.default_rng(3).integers(0, 900, 4700)
CODES = binarize(
    np.random.default_rng(3).normal(size=(900, 64))[CODE_LABELS]
    + np.random.default_rng(4).normal(size=(4700, 64))
)


def bits_of(codes: np.ndarray) -> np.ndarray:
    return np.unpackbits(codes, axis=1).astype(np.float32)


def test_codes_have_the_metrics_of_their_bits_in_every_kernel_and_thread_count_and_on_peers() -> (
    None
):
    """Use that the distance between codes is the squared distance between their bits."""
    codes, labels = CODES, CODE_LABELS
    found = verify(codes, labels, similarity="hamming", threads=1)
    assert found == verify(bits_of(codes), labels, similarity="euclidean")
    assert found == verify(codes, labels, similarity="hamming", threads=3)
    for kernel in KERNELS:
        assert found == run_with({"kernel": kernel}, codes, labels, similarity="hamming")
    for of_peer in run_together(
        3, lambda p: verify(codes, labels, similarity="hamming", threads=1, peers=p)
    ):
        assert of_peer == found
    sides = codes[:50], labels[:50], codes, labels
    for of_peer in run_together(
        2, lambda p: verify(*sides, similarity="hamming", threads=1, peers=p)
    ):
        assert of_peer == verify(*sides, similarity="hamming")


def test_given_pairs_of_codes_with_folds_are_those_of_their_bits() -> None:
    i, j = np.triu_indices(60, 1)
    pairs, labels = np.stack([i, j], 1), CODE_LABELS[:60] % 9
    found = verify(CODES[:60], labels, similarity="hamming", pairs=pairs, folds=10)
    assert found == verify(
        bits_of(CODES[:60]), labels, similarity="euclidean", pairs=pairs, folds=10
    )
    every = verify(CODES[:60], labels, similarity="hamming")
    assert {**every.to_dict(), "accuracy": found["accuracy"]} == found.to_dict()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: verify(X, LABELS, metrics="tar@far=1"), ValueError,
         "'tar@far=1' needs a FAR between 0 and 1"),
        (lambda: verify(X, LABELS, metrics="recall@1"), ValueError,
         "'recall@1' is a retrieval metric"),
        (lambda: verify(X, LABELS, metrics="err"), ValueError,
         "unknown metric 'err'; did you mean 'eer'"),
        (lambda: verify(X, LABELS, metrics="accuracy"), ValueError,
         "'accuracy', but folds is None"),
        (lambda: verify(X, np.arange(40)), ValueError, "none of the 780 pairs has equal labels"),
        (lambda: verify(X, np.zeros(40, int)), ValueError,
         r"all 780 pairs .* negative \(impostor\) pair"),
        (lambda: verify(X, Labels(LABELS, LABELS)), ValueError,
         "none of the 700 pairs has equal labels"),
        (lambda: verify(X, Labels(LABELS, LABELS), X, LABELS), ValueError,
         "labels have groups, but gallery_labels"),
        (lambda: verify(X, LABELS, X), ValueError, "gallery is given without gallery_labels"),
        (lambda: verify(X, Relevance(np.zeros(len(X) + 1, int), [])), ValueError,
         "labels is a Relevance"),
        (lambda: verify(X, Labels(LABELS, ignored=([0] * 41, []))), ValueError,
         "labels have ignored items"),
        (lambda: verify(X, LABELS, similarity="hamming"), TypeError,
         "embeddings has dtype float32; .* uint8 codes"),
        (lambda: verify(CODES, CODE_LABELS), TypeError,
         "embeddings has dtype uint8, .* similarity='hamming'"),
        (lambda: verify(X, LABELS, folds=10), ValueError, "folds is given without pairs"),
        (lambda: verify(X, LABELS, pairs=[[0, 1]], peers=object()), ValueError,
         "pairs and peers are both given"),  # type: ignore[arg-type]
        (lambda: verify(X, LABELS, pairs=[[0, 40]]), ValueError,
         r"\[0, 40\]; expected nonnegative indices below 40"),
        (lambda: verify(X, LABELS, pairs=[[0, 1], [-1, 2]]), ValueError, r"pair 1 is \[-1, 2\]"),
        (lambda: verify(X, LABELS, pairs=[[0, 1], [3, 3]]), ValueError,
         r"pair 1 is \[3, 3\]; .* distinct items"),
        (lambda: verify(X, LABELS, pairs=[[0.0, 1]]), TypeError, "pairs has dtype float64"),
        (lambda: verify(X, LABELS, pairs=[0, 1]), ValueError, r"pairs has shape \(2,\)"),
        (lambda: verify(X, LABELS, pairs=[[0, 8], [0, 16]]), ValueError, "all 2 pairs match"),
        (lambda: verify(X, LABELS, pairs=[[0, 8], [0, 1]], folds=3), ValueError,
         "folds is 3; expected 2 to 2"),
        (lambda: verify(X, LABELS, pairs=[[0, 8], [0, 1]], folds=[1]), ValueError,
         r"folds has shape \(1,\)"),
        (lambda: verify(X, LABELS, pairs=[[0, 8], [0, 1]], folds=[1, 1]), ValueError,
         "in one fold"),
        (lambda: verify(X * 0, LABELS), ValueError, "embeddings row 0 is all zeros"),
        (lambda: verify(X, LABELS, similarity="l2"), ValueError,
         "similarity is 'l2'"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_errors_say_what_came_and_what_was_expected(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_pair_with_a_gallery_may_have_equal_indices() -> None:
    found = verify(X, LABELS, X[8:], LABELS[8:], pairs=[[0, 0], [0, 1], [1, 1], [1, 2]], folds=2)
    assert (found.n_positive, found.n_negative) == (2, 2)
    assert found.fold_accuracy is not None
    assert found.fold_accuracy.shape == (2,)

"""Verification against the slow reference in rational arithmetic, and against scikit-learn on the same scores."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from eval_support import verification_reference as reference
from eval_support.scores_reference import score
from eval_support.small_rows import small_rows
from eval_support.trial import trial
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import Verification, _native, verify

KERNELS = _native.kernels()
SIMILARITIES = ("cosine", "dot", "euclidean")
FAR = (0.9, 0.5, 1 / 3, 0.3, 0.1, 1e-3)
# A sample and a capacity so small that brackets are wrong, lists overflow, and float64 decides.
SIZES = [(None, None), (1, None), (3, 5), (20, 1), (1, 200), (20, 200)]
PAGE = Path(__file__).parents[3] / "docs/reference/verification.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
LABELS = np.arange(40) % 8


def labels_of(data: st.DataObject, rows: int, kinds: int = 2) -> np.ndarray:
    return np.array(data.draw(st.lists(st.integers(0, kinds), min_size=rows, max_size=rows)))


def run_with(options: dict[str, Any], *arguments: Any, **names: Any) -> Verification:
    with trial(**options):
        return verify(*arguments, **names)


def assert_measured(found: Verification, positives: list[float], negatives: list[float]) -> None:
    assert (found.n_positive, found.n_negative) == (len(positives), len(negatives))
    expected = {far: reference.tar_at(far, positives, negatives) for far in FAR}
    assert found.tar == {far: tar for far, (tar, _) in expected.items()}
    assert found.threshold == {far: threshold for far, (_, threshold) in expected.items()}
    assert (found.eer, found.eer_threshold) == reference.equal_error_rate(positives, negatives)
    assert found.auc == reference.area(positives, negatives)
    assert found.roc is not None
    # Corners between which the curve is straight are left out, so each of ours is one of all, in order.
    curve = list(zip(found.roc.far.tolist(), found.roc.tar.tolist()))
    every = [(float(far), float(tar)) for far, tar, _ in reference.corners(positives, negatives)]
    assert curve == sorted(set(curve))
    assert set(curve) <= set(every)
    assert (curve[0], curve[-1]) == ((0.0, 0.0), (1.0, 1.0))
    for far, tar, threshold in zip(found.roc.far, found.roc.tar, found.roc.threshold):
        assert far == float(reference.share(negatives, threshold))
        assert tar == float(reference.share(positives, threshold))
    area = np.trapezoid(found.roc.tar, found.roc.far) if hasattr(np, "trapezoid") else found.auc
    assert area == pytest.approx(found.auc, abs=1e-12)  # sums of rounded products


@pytest.mark.parametrize("similarity", SIMILARITIES)
@given(data=st.data())
def test_all_pairs_are_measured_as_by_the_reference(similarity: Any, data: Any) -> None:
    dim = data.draw(st.sampled_from([1, 2, 3, 9]))
    x = data.draw(small_rows(dim))
    labels, groups = labels_of(data, len(x)), labels_of(data, len(x), 1)
    gallery = gallery_labels = gallery_groups = None
    if data.draw(st.booleans()):
        gallery = data.draw(small_rows(dim))
        gallery_labels, gallery_groups = labels_of(data, len(gallery)), labels_of(data, len(gallery), 1)
    if data.draw(st.booleans()):
        groups = gallery_groups = None
    positives, negatives = reference.all_pairs(
        x, labels, gallery, gallery_labels, groups, gallery_groups, similarity
    )
    sample, capacity = data.draw(st.sampled_from(SIZES))
    names: dict[str, Any] = {
        "similarity": similarity,
        "far": FAR,
        "groups": groups,
        "gallery_groups": gallery_groups,
        "threads": data.draw(st.integers(1, 2)),
    }
    if not positives or not negatives:
        with pytest.raises(ValueError, match="expected at least one"):
            verify(x, labels, gallery, gallery_labels, **names)
        return
    for kernel in KERNELS:
        options = {"kernel": kernel, "verify_sample": sample, "verify_listed": capacity}
        found = run_with(options, x, labels, gallery, gallery_labels, **names)
        assert_measured(found, positives, negatives)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@given(data=st.data())
def test_given_pairs_are_measured_as_by_the_reference(similarity: Any, data: Any) -> None:
    x = data.draw(small_rows(data.draw(st.sampled_from([1, 2, 9]))))
    labels, groups = labels_of(data, len(x)), labels_of(data, len(x), 1)
    place = st.integers(0, len(x) - 1)
    pairs = data.draw(
        st.lists(st.tuples(place, place).filter(lambda p: p[0] != p[1]), min_size=2, max_size=30)
    )
    folds = data.draw(st.lists(st.integers(0, 3), min_size=len(pairs), max_size=len(pairs)))
    kept = [at for at, (i, j) in enumerate(pairs) if labels[i] != labels[j] or groups[i] != groups[j]]
    positive = [bool(labels[pairs[at][0]] == labels[pairs[at][1]]) for at in kept]
    scores = [score(x[pairs[at][0]], x[pairs[at][1]], similarity) for at in kept]
    kept_folds = [folds[at] for at in kept]
    names: dict[str, Any] = {"similarity": similarity, "far": FAR, "pairs": pairs, "groups": groups}
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
    assert found.accuracy == mean


def noisy(rows: int, dim: int, dtype: type, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows of classes; of kind "ties" with small integers, "twins" with repeated rows."""
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
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_kernel_size_and_thread_count_gives_the_same_bits(
    similarity: Any, dtype: type, kind: str
) -> None:
    x, labels = noisy(700, 19, dtype, kind)
    expected = None
    for gallery, gallery_labels in ((None, None), (x[350:], labels[350:])):
        results = []
        queries, codes = (x, labels) if gallery is None else (x[:350], labels[:350])
        for kernel in KERNELS:
            for threads, (sample, capacity) in (
                (1, (None, None)),
                (2, (4000, None)),
                (3, (2000, 20_000)),
                (2, (900, 900)),
            ):
                options = {"kernel": kernel, "verify_sample": sample, "verify_listed": capacity}
                found = run_with(
                    options, queries, codes, gallery, gallery_labels, similarity=similarity, threads=threads
                )
                assert found.roc is not None
                results.append((found.to_dict(), found.roc.far.tobytes(), found.roc.threshold.tobytes()))
        assert all(result == results[0] for result in results)
        expected = expected or results[0]
    i, j = np.triu_indices(len(x), 1)
    given = verify(x, labels, pairs=np.stack([i, j], 1), similarity=similarity)
    assert given.to_dict() == expected[0]


@pytest.mark.parametrize("kind", ["distinct", "ties", "twins"])
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_rates_are_those_of_scikit_learn_on_the_same_scores(similarity: Any, kind: str) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="compares with scikit-learn")
    x, labels = noisy(300, 16, np.float32, kind)
    i, j = np.triu_indices(len(x), 1)
    scores = _native.pair_scores(x, None, np.stack([i, j], 1).astype(np.uint32), similarity=similarity)
    found = verify(x, labels, similarity=similarity, far=FAR)
    fpr, tpr, thresholds = metrics.roc_curve(labels[i] == labels[j], scores, drop_intermediate=False)
    assert found.tar == {far: tpr[fpr <= far].max() for far in FAR}
    for far, threshold in found.threshold.items():
        assert thresholds[fpr <= far].min() >= threshold > thresholds[fpr > far].max()
    # scikit-learn adds rounded areas, and the crossing is found on rounded corners.
    assert found.auc == pytest.approx(metrics.roc_auc_score(labels[i] == labels[j], scores), abs=1e-12)
    at = int(np.argmax(fpr + tpr >= 1))
    part = (1 - fpr[at - 1] - tpr[at - 1]) / (fpr[at] + tpr[at] - fpr[at - 1] - tpr[at - 1])
    assert found.eer == pytest.approx(fpr[at - 1] + part * (fpr[at] - fpr[at - 1]), abs=1e-12)
    assert found.roc is not None
    np.testing.assert_allclose(np.interp(fpr, found.roc.far, found.roc.tar) >= tpr - 1e-12, True)


@pytest.mark.parametrize("sizes", SIZES)
def test_a_threshold_after_ties_at_zero_is_the_least_number_above_it(sizes: Any) -> None:
    """Brackets that shrink towards zero from below must not end at minus zero."""
    x = np.array([[2.0], [2.0], [-2.0], [2.0]], np.float16)
    options = dict(zip(("verify_sample", "verify_listed"), sizes))
    found = run_with(options, x, [0, 1, 0, 0], similarity="euclidean", far=0.5)
    assert found.threshold == {0.5: 5e-324}


def test_only_what_is_asked_for_is_measured() -> None:
    tar = verify(X, LABELS, metrics=["tar"], far=0.1)
    assert (list(tar.tar), tar.eer, tar.auc, tar.roc) == ([0.1], None, None, None)
    eer = verify(X, LABELS, metrics=["eer"])
    assert (eer.tar, eer.threshold, eer.auc) == ({}, {}, None)
    assert eer.eer == verify(X, LABELS).eer
    auc = verify(X, LABELS, metrics=["auc"])
    assert (auc.tar, auc.eer) == ({}, None)
    assert auc.auc == verify(X, LABELS).auc
    assert "AUC" in str(auc)
    assert "TAR" not in str(auc)


def test_a_perfect_and_a_useless_similarity() -> None:
    apart = np.repeat(np.eye(4), 3, axis=0)
    perfect = verify(apart, np.arange(12) // 3, far=(0.5, 0.01))
    assert perfect.tar == {0.5: 1.0, 0.01: 1.0}
    assert (perfect.eer, perfect.auc) == (0.0, 1.0)
    # Any threshold above 0 tells them apart.
    assert perfect.threshold == {0.5: 5e-324, 0.01: 5e-324}
    same = verify(np.ones((6, 3)), [0, 0, 0, 1, 1, 1])
    assert set(same.tar.values()) == {0.0}
    assert (same.eer, same.auc) == (0.5, 0.5)
    assert set(same.threshold.values()) == {math.nextafter(1.0, 2.0)}


def test_thresholds_accept_what_range_search_finds() -> None:
    from dml_eval_rs import range_search

    x, labels = noisy(300, 8, np.float32, "ties")
    found = verify(x, labels)
    for far, threshold in found.threshold.items():
        offsets, items, _ = range_search(x, None, threshold, exclude_self=True)
        queries = np.repeat(np.arange(300), np.diff(offsets))
        match = labels[queries] == labels[items]
        assert match.sum() / 2 / found.n_positive == found.tar[far]
        assert (~match).sum() / 2 / found.n_negative <= far


def test_large_classes_are_counted_from_tables() -> None:
    x, _ = noisy(600, 8, np.float32, "distinct")
    labels = np.repeat([0, 1, 2], [500, 60, 40])
    for groups in (None, np.arange(600) % 7):
        i, j = np.triu_indices(600, 1)
        given = verify(x, labels, pairs=np.stack([i, j], 1), groups=groups)
        assert verify(x, labels, groups=groups).to_dict() == given.to_dict()


def test_more_positives_than_are_held_are_counted_for_thresholds_alone() -> None:
    x, _ = noisy(3000, 4, np.float32, "distinct")
    labels = (np.arange(3000) >= 2950).astype(int)
    i, j = np.triu_indices(3000, 1)
    names: dict[str, Any] = {"metrics": ["tar"], "far": FAR}
    found = verify(x, labels, **names)
    assert found.n_positive > 2**22
    assert found.to_dict() == verify(x, labels, pairs=np.stack([i, j], 1), **names).to_dict()
    for metric in ("eer", "auc"):
        with pytest.raises(
            ValueError, match=r"4351000 positive pairs; .* at most 4194304: leave out 'eer' and 'auc'"
        ):
            verify(x, labels, metrics=[metric])


@pytest.mark.parametrize(
    "example", [e for e in EXAMPLES if "faiss" not in e], ids=["search", "verification", "blocks"]
)
def test_the_examples_of_the_page_run(example: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: verify(X, LABELS, far=(0.1, 1.0)), ValueError, "far holds 1.0; .* above 0 and below 1"),
        (lambda: verify(X, LABELS, far=0), ValueError, "far holds 0.0"),
        (lambda: verify(X, LABELS, far=[float("nan")]), ValueError, "far holds nan"),
        (lambda: verify(X, LABELS, far="x"), TypeError, "far is 'x'"),
        (lambda: verify(X, np.arange(40)), ValueError, "none of the 780 pairs has equal labels"),
        (lambda: verify(X, np.zeros(40, int)), ValueError, r"all 780 pairs .* negative \(impostor\) pair"),
        (lambda: verify(X, LABELS, groups=LABELS), ValueError, "none of the 700 pairs has equal labels"),
        (
            lambda: verify(X, LABELS, groups=LABELS[:9]),
            ValueError,
            r"groups has shape \(9,\); expected \(40,\)",
        ),
        (lambda: verify(X, LABELS, gallery_groups=LABELS), ValueError, "gallery_groups came without gallery"),
        (
            lambda: verify(X, LABELS, X, LABELS, groups=LABELS),
            ValueError,
            "groups came without gallery_groups",
        ),
        (lambda: verify(X, LABELS, X), ValueError, "gallery came without gallery_labels"),
        (lambda: verify(X, LABELS, metrics=["far"]), ValueError, "each of metrics is 'far'"),  # type: ignore[list-item]
        (lambda: verify(X, LABELS, folds=10), ValueError, "folds came without pairs"),
        (
            lambda: verify(X, LABELS, pairs=[[0, 40]]),
            ValueError,
            r"pair 0 is \[0, 40\]; expected indices below 40",
        ),
        (lambda: verify(X, LABELS, pairs=[[0, 1], [-1, 2]]), ValueError, r"pair 1 is \[-1, 2\]"),
        (
            lambda: verify(X, LABELS, pairs=[[0, 1], [3, 3]]),
            ValueError,
            r"pair 1 is \[3, 3\]; .* distinct items",
        ),
        (lambda: verify(X, LABELS, pairs=[[0.0, 1]]), TypeError, "pairs has dtype float64"),
        (lambda: verify(X, LABELS, pairs=[0, 1]), ValueError, r"pairs has shape \(2,\)"),
        (lambda: verify(X, LABELS, pairs=[[0, 8], [0, 16]]), ValueError, "all 2 pairs have equal labels"),
        (
            lambda: verify(X, LABELS, pairs=[[0, 8], [0, 1]], folds=3),
            ValueError,
            "folds is 3; expected 2 to 2",
        ),
        (lambda: verify(X, LABELS, pairs=[[0, 8], [0, 1]], folds=[1]), ValueError, r"folds has shape \(1,\)"),
        (lambda: verify(X, LABELS, pairs=[[0, 8], [0, 1]], folds=[1, 1]), ValueError, "in one fold"),
        (lambda: verify(X * 0, LABELS), ValueError, "embeddings row 0 is all zeros"),
        (lambda: verify(X, LABELS, similarity="l2"), ValueError, "similarity is 'l2'"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_say_what_came_and_what_was_expected(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_pair_with_a_gallery_may_have_equal_indices() -> None:
    found = verify(X, LABELS, X[8:], LABELS[8:], pairs=[[0, 0], [0, 1], [1, 1], [1, 2]], folds=2)
    assert (found.n_positive, found.n_negative) == (2, 2)
    assert found.fold_accuracy is not None
    assert found.fold_accuracy.shape == (2,)

"""k-means and the agreement of partitions, compared with slow references."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from eval_support import clustering_reference as reference
from eval_support.trial import trial
from hypothesis import assume, given
from hypothesis import strategies as st

import dml_eval_rs._native as _native
from dml_eval_rs import Labels, ami, ari, binarize, evaluate, kmeans, nmi


def partitions(n: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 3), min_size=n, max_size=n)


PAIRS = st.integers(1, 40).flatmap(lambda n: st.tuples(partitions(n), partitions(n)))


@pytest.mark.parametrize("average", ["min", "geometric", "arithmetic", "max"])
@given(pair=PAIRS)
def test_nmi_is_the_information_over_an_average_of_the_entropies(
    average: Any, pair: tuple[list[int], list[int]]
) -> None:
    a, b = pair
    found = nmi(a, b, average=average)
    assert 0 <= found <= 1
    assert found == pytest.approx(reference.nmi(a, b, average), abs=1e-12)
    assert found == pytest.approx(nmi(b, a, average=average), abs=1e-12)
    theirs = sklearn.metrics.normalized_mutual_info_score(a, b, average_method=average)
    assert found == pytest.approx(theirs, abs=1e-12)


@given(PAIRS)
def test_by_default_nmi_is_twice_the_information_over_the_sum(
    pair: tuple[list[int], list[int]],
) -> None:
    assert nmi(*pair) == nmi(*pair, average="arithmetic")


@given(PAIRS)
def test_ari_counts_the_pairs_of_items_that_are_together(pair: tuple[list[int], list[int]]) -> None:
    a, b = pair
    # The index is a quotient of exact integers, so that only the division is rounded, as in the
    # reference.
    assert ari(a, b) == pytest.approx(reference.ari(a, b), rel=1e-15, abs=0)
    assert ari(a, b) == ari(b, a)
    assert ari(a, b) == pytest.approx(sklearn.metrics.adjusted_rand_score(a, b), abs=1e-12)


def test_aris_counts_of_pairs_do_not_overflow() -> None:
    a = np.zeros(2_000_000, np.int64)
    a[-1] = 1
    b = a[::-1].copy()
    pairs, together = 2_000_000 * 1_999_999 // 2, 1_999_999 * 1_999_998 // 2
    both = 1_999_998 * 1_999_997 // 2
    expected = (both * pairs - together**2) / (together * pairs - together**2)
    assert ari(a, b) == pytest.approx(expected, rel=1e-15, abs=0)
    assert ari(a, a) == 1.0


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(partitions(n), partitions(n))))
def test_ami_is_adjusted_by_the_mean_over_all_permutations(
    pair: tuple[list[int], list[int]],
) -> None:
    a, b = pair
    information, expected = reference.mutual_information(a, b), reference.ami(a, b)
    # Otherwise both the numerator and the denominator would be rounding errors.
    assume(abs(expected) <= 1e6 and np.isfinite(expected) and information >= 1e-12)
    assert ami(a, b) == pytest.approx(expected, abs=1e-9)


def test_ami_keeps_its_digits_at_ten_million_items() -> None:
    n = 10**7
    items = np.arange(n)
    # Independent halves share zero information: AMI is −E / (ln 2 − E). E is four times the mean of
    # a cell, computed with 170-bit log-gamma functions.
    expected = 4 * 1.2500001875000334e-08
    assert ami(items % 2, items // 2 % 2) == pytest.approx(
        -expected / (math.log(2) - expected), rel=1e-12, abs=0
    )


@given(st.integers(0, 2**32))
def test_information_has_the_digits_of_exact_logarithms(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, clusters = int(rng.integers(10, 300)), int(rng.integers(2, 20))
    a, b = rng.integers(0, clusters, n), rng.integers(0, clusters, n)
    assume(len(set(a)) > 1 and len(set(b)) > 1)

    def total(x: Any) -> Decimal:
        """Return Σ c·ln c over the groups' sizes."""
        return sum((Decimal(c) * Decimal(c).ln() for c in Counter(x).values()), Decimal(0))

    with localcontext(Context(prec=50)):
        whole = Decimal(n) * Decimal(n).ln()
        entropies = [(whole - total(x.tolist())) / n for x in (a, b)]
        information = sum(entropies) - (whole - total(zip(a.tolist(), b.tolist()))) / n
        exact = float(2 * information / sum(entropies))
    # The tolerance allows for float64 sums of up to 300 terms.
    assert nmi(a, b) == pytest.approx(exact, rel=0, abs=1e-14)


def test_agreement_takes_labels_of_any_kind() -> None:
    assert nmi(["a", "a", "b"], np.array([2**63, 2**63, 1], np.uint64)) == pytest.approx(
        1.0, abs=1e-12
    )


def test_agreement_is_quick_for_many_clusters() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 11_316, 60_502), rng.integers(0, 11_316, 60_502)
    # For independent partitions, NMI is high by chance, but AMI and ARI are not.
    assert nmi(a, b) > 0.7
    assert abs(ami(a, b)) < 0.01
    assert abs(ari(a, b)) < 0.001
    theirs = sklearn.metrics.adjusted_mutual_info_score(a[:5000], b[:5000])
    # scikit-learn's logarithms of factorials are rounded differently.
    assert ami(a[:5000], b[:5000]) == pytest.approx(theirs, abs=1e-7)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_kmeans_converges_to_rows_that_are_nearest_to_their_own_mean(dtype: type) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(5, 7))[rng.integers(0, 5, 300)] * 4 + rng.normal(size=(300, 7))).astype(
        dtype
    )
    found = kmeans(x, 5, seed=1)
    np.testing.assert_array_equal(found.labels, reference.nearest_centroid(x, found.centroids))
    for cluster in range(5):
        mean = x[found.labels == cluster].astype(np.float64).mean(axis=0)
        # Means are rounded to the centroids' dtype, so allow for this.
        np.testing.assert_allclose(found.centroids[cluster], mean, rtol=1e-6, atol=1e-6)
    assert found.centroids.dtype == (np.float64 if dtype is np.float64 else np.float32)
    distances = ((x.astype(np.float64) - found.centroids[found.labels]) ** 2).sum()
    assert found.inertia == pytest.approx(distances, rel=1e-9)
    assert found.n_iter > 1


def test_kmeans_is_the_same_for_a_seed_whatever_the_kernel_and_threads() -> None:
    x = np.random.default_rng(0).normal(size=(400, 19)).astype(np.float32)
    bits = set()
    options: Any = {"seed": 7, "n_init": 2, "max_iter": 50}
    for kernel, threads in itertools.product(_native.kernels(), (1, 2, 3)):
        with trial(kernel=kernel):
            labels, centroids, inertia, rounds = _native.kmeans(x, 13, threads=threads, **options)
        bits.add((labels.tobytes(), centroids.tobytes(), inertia, rounds))
    assert len(bits) == 1
    assert kmeans(x, 13, seed=7).labels.tolist() != kmeans(x, 13, seed=8).labels.tolist()


def test_more_runs_are_never_worse() -> None:
    x = np.random.default_rng(0).normal(size=(300, 3))
    inertias = [kmeans(x, 8, seed=3, n_init=runs).inertia for runs in (1, 5, 10)]
    assert inertias == sorted(inertias, reverse=True)


def test_no_cluster_is_empty_even_where_rows_coincide() -> None:
    x = np.repeat(np.array([[0.0, 0.0], [1.0, 1.0]]), 10, axis=0)
    found = kmeans(x, 2, seed=0)
    assert sorted(np.bincount(found.labels)) == [10, 10]
    assert found.inertia == 0.0
    everything = kmeans(np.arange(6.0)[:, None], 6)
    assert sorted(everything.labels) == list(range(6))
    # If there are more clusters than distinct rows, equal centroids share the rows.
    assert kmeans(x, 5, seed=0).inertia == 0.0
    # A draw takes a remaining row, and should not scan all rows again to find this row.
    alike = kmeans(np.ones((3000, 1)), 3000, max_iter=1)
    assert (alike.labels.tolist(), alike.inertia) == ([0] * 3000, 0.0)


NMI = ["nmi", "nmi_min", "nmi_geometric", "nmi_max"]


def agreement(labels: Any, clusters: Any) -> dict[str, float]:
    averages: Any = {"nmi": "arithmetic", **{name: name[4:] for name in NMI[1:]}}
    of_nmi = {name: nmi(labels, clusters, average=average) for name, average in averages.items()}
    return {**of_nmi, "ami": ami(labels, clusters), "ari": ari(labels, clusters)}


def test_metrics_of_clusters_are_those_of_their_parts() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 10)
    x = (rng.normal(size=(12, 6))[labels] + 0.5 * rng.normal(size=(120, 6))).astype(np.float32)
    unit = (x / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)).astype(np.float32)
    clusters = kmeans(unit, 12, seed=5).labels
    result = evaluate(3 * x, labels, metrics=[*NMI, "ari", "ami"], seed=5)
    assert list(result) == [*NMI, "ari", "ami"]
    # Here the rows are scaled in a different order of operations, which is equally accurate.
    assert dict(result) == pytest.approx(agreement(labels, clusters), abs=1e-12)
    plain = evaluate(x, labels, similarity="euclidean", metrics="nmi", seed=5, n_clusters=4)
    assert plain["nmi"] == nmi(labels, kmeans(x, 4, seed=5).labels)
    apart = evaluate(x[:60], labels[:60], x, labels, similarity="dot", metrics="nmi", seed=5)
    joined = np.concatenate([x[:60], x])
    assert apart["nmi"] == nmi(
        np.concatenate([labels[:60], labels]), kmeans(joined, 12, seed=5).labels
    )
    bits = (x > 0).astype(np.float32)
    of_codes = evaluate(
        np.packbits(x > 0, axis=1), labels, similarity="hamming", metrics="ari", seed=5
    )
    padded = np.pad(bits, [(0, 0), (0, 2)])
    assert of_codes["ari"] == ari(labels, kmeans(padded, 12, seed=5).labels)
    assert binarize(x).tolist() == np.packbits(x > 0, axis=1).tolist()


@pytest.mark.parametrize("junk", [[3, 7], -1])
def test_junk_is_in_no_cluster(junk: Any) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 10)
    labels = labels if isinstance(junk, list) else np.where(labels % 5 == 3, -1, labels)
    x = rng.normal(size=(12, 6))[np.abs(labels)] + rng.normal(size=(120, 6))
    codes = np.packbits(x > 0, axis=1)
    kept = ~np.isin(labels, junk)
    options: Any = {"metrics": ["nmi", "ami", "ari", "recall@1"], "seed": 3}
    given: Any
    for given, similarity in ((x, "euclidean"), (x, "cosine"), (codes, "hamming")):
        found = evaluate(given, Labels(labels, junk=junk), similarity=similarity, **options)
        assert dict(found) == dict(
            evaluate(given[kept], labels[kept], similarity=similarity, **options)
        )
        sides: Any = (given[kept][:50], labels[kept][:50])
        found = evaluate(*sides, given, Labels(labels, junk=junk), similarity=similarity, **options)
        assert dict(found) == dict(
            evaluate(*sides, given[kept], labels[kept], similarity=similarity, **options)
        )


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_rows_of_any_dtypes_are_clustered_in_place(similarity: Any) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 20)
    x = rng.normal(size=(8, 6))[labels] + 0.8 * rng.normal(size=(160, 6))
    options: Any = {"similarity": similarity, "metrics": "nmi", "seed": 3}
    # If float16 and float64 are given together, the result must be as if both sides were float64.
    half = x[:40].astype(np.float16)
    apart = evaluate(half, labels[:40], x, labels, **options)
    joined = np.concatenate([half.astype(np.float64), x])
    if similarity == "cosine":
        joined /= np.linalg.norm(joined, axis=1, keepdims=True)
    clusters = kmeans(joined, 8, seed=3).labels
    assert apart["nmi"] == pytest.approx(
        nmi(np.concatenate([labels[:40], labels]), clusters), abs=1e-12
    )
    # Directions must be exact for float64 rows of any magnitude.
    if similarity == "cosine":
        assert evaluate(1e300 * x, labels, **options) == evaluate(1e-300 * x, labels, **options)
    backwards = np.asfortranarray(x[::-1])[::-1]
    assert evaluate(backwards, labels, **options) == evaluate(x, labels, **options)


def test_a_number_of_clusters_out_of_range_is_refused_before_any_work() -> None:
    x, labels = np.eye(6, dtype=np.float32), np.arange(6) // 2
    started: list[int] = []
    for n_clusters in (0, 7):
        with pytest.raises(ValueError, match="n_clusters is"):
            evaluate(
                x,
                labels,
                metrics="nmi",
                n_clusters=n_clusters,
                progress=lambda *_: started.append(1),
            )
    assert not started

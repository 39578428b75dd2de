"""Check relations between calls, bit for bit and per query, on enough rows (thousands) to be
pruned.

The slow reference would take hours, but is not needed when calls are compared. Use `make soak` to
run all tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from eval_support.matches import call
from eval_support.trial import trial

import dml_eval_rs as ours
import dml_eval_rs._native as _native

N, DIM, CLASS = 2400, 96, 5
SIMILARITIES = ("cosine", "dot", "euclidean", "hamming")
FIRST_RANKS = ["recall@1", "recall@10", "precision@1", "r_precision", "map@r", "mrr"]
FIRST_RANKS += ["ndcg@20", "precision@7"]
EVERY_RANK = [*FIRST_RANKS, "map", "minp"]


class Rows:
    """Rows sorted by class, with decaying numbers, and codes."""

    def __init__(self, noise: float, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.labels = np.repeat(np.arange(N // CLASS), CLASS)
        centres = rng.normal(size=(N // CLASS, DIM))
        x = (centres[self.labels] + noise * rng.normal(size=(N, DIM))) / np.arange(1, DIM + 1)
        self.x = x.astype(np.float32)
        # Codes are long, so that distances rarely tie.
        self.codes = np.packbits(x @ rng.normal(size=(DIM, 256)) > 0, axis=1)
        near = ours.knn(self.x, None, 14, exclude_self=True)[1]
        far = rng.integers(0, N, (N, 10))
        self.others = [
            np.setdiff1d(np.r_[near[q], far[q]], np.flatnonzero(self.labels == self.labels[q]))
            for q in range(N)
        ]

    def of(self, similarity: str) -> np.ndarray:
        return self.codes if similarity == "hamming" else self.x


@pytest.fixture(scope="module", params=[0.2, 0.8], ids=["tight", "noisy"])
def rows(request: pytest.FixtureRequest) -> Rows:
    return Rows(request.param)


@pytest.fixture(scope="module")
def tight() -> Rows:
    return Rows(0.2)


def evaluate(similarity: str, *arguments: Any, **options: Any) -> Mapping[str, np.ndarray]:
    return call(ours.evaluate, *arguments, similarity=similarity, **options).per_query


def assert_same(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        different = np.flatnonzero(
            found[name].view(np.uint64) != np.asarray(values).view(np.uint64)
        )
        assert not len(different), f"{name} of query {different[0]}: {found[name][different[0]]}"


def one_by_one(
    measure: Callable[[int], Mapping[str, np.ndarray]], queries: Any
) -> dict[str, np.ndarray]:
    """Measure queries in separate calls."""
    columns = [measure(q) for q in queries]
    return {name: np.concatenate([column[name] for column in columns]) for name in columns[0]}


def test_ignored_items_of_a_pruned_call_are_those_of_one_call_a_query(tight: Rows) -> None:
    """Check for a past fault: after a tile was skipped, ignored pairs in later tiles were not
    masked.
    """
    whole = evaluate("cosine", tight.x, tight.labels, ignored=tight.others)
    assert whole["map@r"].mean() > 0.97
    queries = range(0, N, 40)

    def measure(q: int) -> Mapping[str, np.ndarray]:
        one, ignored = slice(q, q + 1), [tight.others[q]]
        given = (tight.x[one], tight.labels[one], tight.x, tight.labels)
        return evaluate("cosine", *given, exclude=[q], ignored=ignored)

    found = {name: values[list(queries)] for name, values in whole.items()}
    assert_same(found, one_by_one(measure, queries))


@pytest.mark.nightly
@pytest.mark.parametrize("metrics", [FIRST_RANKS, EVERY_RANK], ids=["first ranks", "every rank"])
@pytest.mark.parametrize("similarity", SIMILARITIES)
class TestEvaluations:
    def test_a_call_is_one_call_for_each_query(
        self, rows: Rows, similarity: str, metrics: Any
    ) -> None:
        x, labels = rows.of(similarity), rows.labels
        assert_same(
            evaluate(similarity, x, labels, metrics=metrics),
            one_by_one(
                lambda q: evaluate(
                    similarity,
                    x[q : q + 1],
                    labels[q : q + 1],
                    x,
                    labels,
                    exclude=[q],
                    metrics=metrics,
                ),
                range(N),
            ),
        )

    def test_the_order_of_queries_and_of_the_gallery_changes_nothing(
        self, rows: Rows, similarity: str, metrics: Any
    ) -> None:
        x, labels = rows.of(similarity), rows.labels
        rng = np.random.default_rng(1)
        queries, items = rng.permutation(N), rng.permutation(N)
        own = np.empty(N, int)
        own[items] = np.arange(N)
        # Use any rule except "index", because the order changes the indices.
        options: Any = {"ties": "pessimistic", "metrics": metrics}
        expected = evaluate(similarity, x, labels, **options)
        moved = (x[queries], labels[queries], x[items], labels[items])
        found = evaluate(similarity, *moved, exclude=own[queries], **options)
        assert_same(found, {name: values[queries] for name, values in expected.items()})

    def test_an_ignored_item_is_a_deleted_one(
        self, rows: Rows, similarity: str, metrics: Any
    ) -> None:
        x, labels = rows.of(similarity), rows.labels
        gone = np.random.default_rng(2).permutation(N)[: N // 5]
        kept = np.setdiff1d(np.arange(N), gone)
        queries = kept[::2]
        given = (x[queries], labels[queries])
        options: Any = {"metrics": metrics, "unmatched": "zero"}
        ignored = [gone.tolist()] * len(queries)
        found = evaluate(similarity, *given, x, labels, ignored=ignored, exclude=queries, **options)
        places = np.searchsorted(kept, queries)
        assert_same(
            found, evaluate(similarity, *given, x[kept], labels[kept], exclude=places, **options)
        )

    def test_a_group_for_each_item_is_no_group(
        self, rows: Rows, similarity: str, metrics: Any
    ) -> None:
        x, labels = rows.of(similarity), rows.labels
        found = evaluate(similarity, x, labels, groups=np.arange(N), metrics=metrics)
        assert_same(found, evaluate(similarity, x, labels, metrics=metrics))

    def test_a_list_of_each_labels_items_is_the_labels(
        self, rows: Rows, similarity: str, metrics: Any
    ) -> None:
        x, labels = rows.of(similarity), rows.labels
        relevant = [dict.fromkeys(np.flatnonzero(labels == label).tolist(), 1) for label in labels]
        found = evaluate(similarity, x, None, relevant=relevant, metrics=metrics)
        assert_same(found, evaluate(similarity, x, labels, metrics=metrics))

    def test_shards_are_the_gallery(self, rows: Rows, similarity: str, metrics: Any) -> None:
        x, labels = rows.of(similarity), rows.labels
        options: Any = {"ignored": rows.others, "metrics": metrics, "similarity": similarity}
        found = call(ours.evaluate_shards, [x[:700], x[700:]], labels, block=1000, **options)
        assert_same(found.per_query, call(ours.evaluate, x, labels, **options).per_query)

    def test_every_kernel_screen_and_thread_count_is_every_other(
        self, rows: Rows, similarity: str, metrics: Any
    ) -> None:
        x, labels = rows.of(similarity), rows.labels
        options: Any = {"ignored": rows.others, "metrics": metrics}
        expected = evaluate(similarity, x, labels, **options)
        for kernel in _native.kernels():
            for screen, threads in (("16-bit", 2), ("float32", 1)):
                with trial(kernel=kernel, screen=screen):
                    found = evaluate(similarity, x, labels, threads=threads, **options)
                assert_same(found, expected)

    def test_levels_and_rules_in_one_call_are_calls_of_their_own(
        self, rows: Rows, similarity: str, metrics: Any
    ) -> None:
        x, labels = rows.of(similarity), rows.labels
        options: Any = {"ignored": rows.others, "metrics": metrics}
        levels = {"class": labels, "superclass": labels // 7}
        found = call(ours.evaluate_levels, x, levels, similarity=similarity, **options)
        for name, of_level in levels.items():
            assert_same(found[name].per_query, evaluate(similarity, x, of_level, **options))
        ties = ("expected", "index", "optimistic")
        rules = call(ours.evaluate_ties, x, labels, similarity=similarity, ties=ties, **options)
        for rule, of_rule in rules.items():
            assert_same(of_rule.per_query, evaluate(similarity, x, labels, ties=rule, **options))


@pytest.mark.nightly
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_doubled_negative_moves_what_its_rule_of_ties_says(rows: Rows, similarity: Any) -> None:
    """A copy ties with its original and comes after it, so it increases later positives' ranks by
    1.
    """
    x, labels = rows.of(similarity), rows.labels
    copies = np.arange(0, N, 7)
    gallery = np.concatenate([x, x[copies]])
    others = np.concatenate([labels, np.full(len(copies), N)])
    options: dict[str, Any] = {
        "metrics": ["recall@1", "map@r", "mrr", "map", "minp"],
        "exclude": np.arange(N),
    }
    ignored = [list(range(N, len(gallery)))] * N
    without = evaluate(similarity, x, labels, gallery, others, ignored=ignored, **options)
    assert_same(without, evaluate(similarity, x, labels, x, labels, **options))
    rules = {
        ties: evaluate(similarity, x, labels, gallery, others, ties=ties, **options)
        for ties in ("optimistic", "index", "expected", "pessimistic")
    }
    _, order = ours.knn_shards(
        [x], [gallery], len(gallery) - 1, similarity=similarity, exclude=np.arange(N)
    )
    first = (others[order] == labels[:, None]).argmax(axis=1) + 1
    np.testing.assert_array_equal(rules["index"]["mrr"], 1 / first)
    # Copies only tie with the original, which is a negative, except for queries of this class.
    if similarity != "hamming":
        doubled = np.isin(labels, labels[copies])
        for columns in rules.values():
            for name, values in columns.items():
                assert (values[~doubled] == rules["index"][name][~doubled]).all()
    for name in rules["index"]:
        assert (rules["optimistic"][name] >= rules["index"][name]).all()
        assert (rules["index"][name] >= rules["pessimistic"][name]).all()


@pytest.mark.nightly
@pytest.mark.parametrize("similarity", SIMILARITIES)
class TestSearches:
    @pytest.mark.parametrize("k", [1, 10, 90, 1000])
    def test_neighbours_are_those_of_one_call_for_each_query_and_of_any_other_way(
        self, rows: Rows, similarity: Any, k: int
    ) -> None:
        x = rows.of(similarity)
        scores, items = ours.knn(x, None, k, similarity=similarity, exclude_self=True)
        for q in range(0, N, 3):
            one = ours.knn(x[q : q + 1], x, k, similarity=similarity, exclude=[q])
            assert one[0].tobytes() == scores[q].tobytes()
            assert one[1].tobytes() == items[q].tobytes()
        for kernel in _native.kernels():
            for sizes in (
                {"directions": 0},
                {"directions": 30},
                {"table_items": 2**40},
                {"few_queries": 2**40},
            ):
                with trial(kernel=kernel, **sizes):
                    again = ours.knn(x, None, k, similarity=similarity, exclude_self=True)
                assert again[0].tobytes() == scores.tobytes()
                assert again[1].tobytes() == items.tobytes()
        more, _ = ours.knn(x, None, k + 1, similarity=similarity, exclude_self=True)
        assert more[:, :k].tobytes() == scores.tobytes()

    def test_the_order_of_queries_and_of_the_gallery_changes_no_score(
        self, rows: Rows, similarity: Any
    ) -> None:
        x = rows.of(similarity)
        queries, items = (np.random.default_rng(seed).permutation(N) for seed in (3, 4))
        scores, _ = ours.knn(x, x, 20, similarity=similarity)
        again, found = ours.knn(x[queries], x[items], 20, similarity=similarity)
        assert again.tobytes() == scores[queries].tobytes()
        in_parts = ours.knn_shards([x[:500], x[500:]], None, 20, similarity=similarity, block=700)
        assert in_parts[0].tobytes() == scores.tobytes()
        assert (np.sort(items[found], axis=1)[:, 1:] > np.sort(items[found], axis=1)[:, :-1]).all()

    def test_a_range_and_the_recall_of_an_index_are_those_of_all_neighbours(
        self, rows: Rows, similarity: Any
    ) -> None:
        x = rows.of(similarity)
        scores, items = ours.knn(x, None, 200, similarity=similarity)
        codes = similarity == "hamming"
        threshold = float(
            np.quantile(scores, 0.1, method="lower") if codes else np.quantile(scores, 0.9)
        )
        offsets, found, similarities = ours.range_search(
            x, x.copy(), threshold, similarity=similarity
        )
        own = ours.range_search(x, None, threshold, similarity=similarity)
        for a, b in zip((offsets, found, similarities), own):
            assert a.tobytes() == b.tobytes()
        for q in range(N):
            mine = found[offsets[q] : offsets[q + 1]]
            assert mine[:200].tolist() == items[q, : len(mine)].tolist()
            # The range is decided in float64, but these scores are rounded to float32.
            if len(mine) < 200:
                beyond = scores[q, len(mine)]
                assert beyond > threshold if codes else beyond <= np.float32(threshold)
        recall = ours.index_recall(items[:, :50], x, x.copy(), 50, similarity=similarity)
        assert recall.per_query.tolist() == [1.0] * N

    def test_hard_negatives_are_the_first_neighbours_of_other_classes(
        self, rows: Rows, similarity: Any
    ) -> None:
        x, labels = rows.of(similarity), rows.labels
        order = ours.knn(x, None, 60, similarity=similarity, exclude_self=True)[1]
        found = ours.hard_negatives(x, labels, 5, similarity=similarity)[1]
        for q in range(N):
            expected = [i for i in order[q] if labels[i] != labels[q]][:5]
            assert found[q].tolist() == expected

    @pytest.mark.parametrize("below", ["hardest", "easiest"])
    def test_hard_negatives_below_a_bound_are_behind_a_positive(
        self, rows: Rows, similarity: Any, below: Any
    ) -> None:
        codes = similarity == "hamming"
        x, labels = rows.of(similarity)[:900], rows.labels[:900]
        similarities, order = ours.knn(x, None, 899, similarity=similarity, exclude_self=True)
        similarities = -similarities if codes else similarities
        found = ours.hard_negatives(x, labels, 5, below=below, similarity=similarity)[1]
        for q in range(900):
            is_positive = labels[order[q]] == labels[q]
            choose = min if below == "hardest" else max
            bound = choose(similarities[q][is_positive], default=np.inf)
            # Skip ties with the bound: float64 keys can differ although these rounded scores are
            # equal.
            if not codes and (similarities[q][~is_positive] == bound).any():
                continue
            expected = order[q][~is_positive & (similarities[q] < bound)][:5]
            assert found[q][found[q] >= 0].tolist() == expected.tolist()


@pytest.mark.nightly
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_verification_is_that_of_its_pairs_in_any_order(rows: Rows, similarity: Any) -> None:
    x, labels = rows.of(similarity)[:900], rows.labels[:900]
    options: Any = {
        "similarity": similarity,
        "metrics": ("tar@far=0.1", "tar@far=1e-3", "tar@far=1e-4", "eer", "auc"),
    }  # fmt: skip
    whole = ours.verify(x, labels, **options).to_dict()
    i, j = np.triu_indices(len(x), 1)
    order = np.random.default_rng(5).permutation(len(i))
    pairs = np.stack([i, j], 1)[order]
    assert ours.verify(x, labels, pairs=pairs, **options).to_dict() == whole
    shuffled = np.random.default_rng(6).permutation(len(x))
    assert ours.verify(x[shuffled], labels[shuffled], **options).to_dict() == whole
    for sizes in (
        {"verify_sample": 3000, "verify_listed": 4000},
        {"table_item_words": 1, "slot_part": 100},
    ):
        with trial(**sizes):
            assert ours.verify(x, labels, **options).to_dict() == whole


@pytest.mark.nightly
def test_each_row_of_a_clustering_is_in_the_cluster_of_its_nearest_centroid(rows: Rows) -> None:
    found = ours.kmeans(rows.x, 60, seed=3)
    nearest = ours.knn(rows.x, found.centroids, 1, similarity="euclidean")[1]
    assert found.labels.tolist() == nearest[:, 0].tolist()
    for kernel in _native.kernels():
        with trial(kernel=kernel, table_items=2**40):
            again = ours.kmeans(rows.x, 60, seed=3)
        assert again.labels.tobytes() == found.labels.tobytes()
        assert again.centroids.tobytes() == found.centroids.tobytes()

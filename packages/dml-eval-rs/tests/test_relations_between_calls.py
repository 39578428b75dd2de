"""Relations between calls, to the bit and for each query, on thousands of rows that prune by themselves.

The slow reference would take hours on them, but two calls that must agree need none. `make soak` runs them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from eval_support.trial import trial

import dml_eval_rs as ours
from dml_eval_rs import _native

N, DIM, CLASS = 2400, 96, 5
SIMILARITIES = ("cosine", "dot", "euclidean", "hamming")
OPTIONS: dict[str, Any] = {"recall_at": (1, 10), "ndcg_at": 20, "precision_at": 7}
EVERY_RANK: dict[str, Any] = {**OPTIONS, "average_precision": True}


class Rows:
    """Rows of classes that adjoin, whose numbers decay, with their codes."""

    def __init__(self, noise: float, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.labels = np.repeat(np.arange(N // CLASS), CLASS)
        centres = rng.normal(size=(N // CLASS, DIM))
        x = (centres[self.labels] + noise * rng.normal(size=(N, DIM))) / np.arange(1, DIM + 1)
        self.x = x.astype(np.float32)
        # Long codes, so that few distances tie.
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


def evaluate(similarity: str, *arguments: Any, **options: Any) -> dict[str, np.ndarray]:
    if similarity == "hamming":
        return ours.evaluate_codes(*arguments, **options).per_query
    return ours.evaluate(*arguments, similarity=similarity, **options).per_query  # type: ignore[arg-type]


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        different = np.flatnonzero(found[name].view(np.uint64) != np.asarray(values).view(np.uint64))
        assert not len(different), f"{name} of query {different[0]}: {found[name][different[0]]}"


def listed(lists: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.cumsum([0, *map(len, lists)]), np.concatenate([np.asarray(items, int) for items in lists])


def one_by_one(measure: Callable[[int], dict[str, np.ndarray]], queries: Any) -> dict[str, np.ndarray]:
    """Measure some queries, each in a call of its own."""
    columns = [measure(q) for q in queries]
    return {name: np.concatenate([column[name] for column in columns]) for name in columns[0]}


def test_ignored_items_of_a_pruned_call_are_those_of_one_call_a_query(tight: Rows) -> None:
    """Ignored pairs were masked in the order of tiles, and not at all after the first tile that was skipped."""
    whole = ours.evaluate(tight.x, tight.labels, ignored=listed(tight.others))
    assert whole.map_at_r > 0.97
    queries = range(0, N, 40)

    def measure(q: int) -> dict[str, np.ndarray]:
        ignored = ([0, len(tight.others[q])], tight.others[q])
        one = slice(q, q + 1)
        return evaluate(
            "cosine", tight.x[one], tight.labels[one], tight.x, tight.labels, indices=[q], ignored=ignored
        )

    found = {name: values[list(queries)] for name, values in whole.per_query.items()}
    assert_same(found, one_by_one(measure, queries))


@pytest.mark.nightly
@pytest.mark.parametrize("options", [OPTIONS, EVERY_RANK], ids=["first ranks", "every rank"])
@pytest.mark.parametrize("similarity", SIMILARITIES)
class TestEvaluations:
    def test_a_call_is_one_call_for_each_query(self, rows: Rows, similarity: str, options: Any) -> None:
        x, labels = rows.of(similarity), rows.labels
        assert_same(
            evaluate(similarity, x, labels, **options),
            one_by_one(
                lambda q: evaluate(
                    similarity, x[q : q + 1], labels[q : q + 1], x, labels, indices=[q], **options
                ),
                range(N),
            ),
        )

    def test_the_order_of_queries_and_of_the_gallery_changes_nothing(
        self, rows: Rows, similarity: str, options: Any
    ) -> None:
        x, labels = rows.of(similarity), rows.labels
        rng = np.random.default_rng(1)
        queries, items = rng.permutation(N), rng.permutation(N)
        own = np.empty(N, int)
        own[items] = np.arange(N)
        # By any rule but that of the index, which the order changes.
        options = {**options, "ties": "pessimistic"}
        expected = evaluate(similarity, x, labels, **options)
        found = evaluate(
            similarity, x[queries], labels[queries], x[items], labels[items], indices=own[queries], **options
        )
        assert_same(found, {name: values[queries] for name, values in expected.items()})

    def test_an_ignored_item_is_a_deleted_one(self, rows: Rows, similarity: str, options: Any) -> None:
        x, labels = rows.of(similarity), rows.labels
        gone = np.random.default_rng(2).permutation(N)[: N // 5]
        kept = np.setdiff1d(np.arange(N), gone)
        queries = kept[::2]
        given = (x[queries], labels[queries])
        options = {**options, "unmatched": "zero"}
        found = evaluate(
            similarity, *given, x, labels, ignored=listed([gone] * len(queries)), indices=queries, **options
        )
        places = np.searchsorted(kept, queries)
        assert_same(found, evaluate(similarity, *given, x[kept], labels[kept], indices=places, **options))

    def test_a_group_for_each_item_is_no_group(self, rows: Rows, similarity: str, options: Any) -> None:
        x, labels = rows.of(similarity), rows.labels
        found = evaluate(similarity, x, labels, groups=np.arange(N), **options)
        assert_same(found, evaluate(similarity, x, labels, **options))

    def test_a_list_of_each_labels_items_is_the_labels(
        self, rows: Rows, similarity: str, options: Any
    ) -> None:
        x, labels = rows.of(similarity), rows.labels
        relevant = listed([np.flatnonzero(labels == label) for label in labels])
        found = evaluate(similarity, x, relevant=relevant, **options)
        assert_same(found, evaluate(similarity, x, labels, **options))

    def test_shards_and_blocks_of_the_gallery_are_the_gallery(
        self, rows: Rows, similarity: Any, options: Any
    ) -> None:
        x, labels = rows.of(similarity), rows.labels
        ignored = listed(rows.others)
        expected = evaluate(similarity, x, labels, ignored=ignored, **options)
        parts = [x[:700], x[700:]]
        found = ours.evaluate_shards(
            parts, labels, ignored=ignored, similarity=similarity, block=1000, **options
        )
        assert_same(found.per_query, expected)
        evaluator = ours.StreamingEvaluator(
            x, labels, ignored=ignored, indices=np.arange(N), similarity=similarity, **options
        )
        for step in (evaluator.find_positives, evaluator.count_negatives):
            for part in (slice(900, N), slice(0, 900)):
                step(x[part], labels[part], first_index=part.start)
        assert_same(evaluator.result().per_query, expected)

    def test_every_kernel_screen_and_thread_count_is_every_other(
        self, rows: Rows, similarity: str, options: Any
    ) -> None:
        x, labels = rows.of(similarity), rows.labels
        ignored = listed(rows.others)
        expected = evaluate(similarity, x, labels, ignored=ignored, **options)
        for kernel in _native.kernels():
            for screen, threads in (("16-bit", 2), ("float32", 1)):
                with trial(kernel=kernel, screen=screen):
                    found = evaluate(similarity, x, labels, ignored=ignored, threads=threads, **options)
                assert_same(found, expected)

    def test_levels_and_rules_in_one_call_are_calls_of_their_own(
        self, rows: Rows, similarity: Any, options: Any
    ) -> None:
        x, labels = rows.of(similarity), rows.labels
        ignored = listed(rows.others)
        levels = {"class": labels, "superclass": labels // 7}
        found = ours.evaluate_levels(x, levels, ignored=ignored, similarity=similarity, **options)
        for name, of_level in levels.items():
            assert_same(found[name].per_query, evaluate(similarity, x, of_level, ignored=ignored, **options))
        ties: Any = ("expected", "index", "optimistic")
        rules = ours.evaluate_ties(x, labels, ignored=ignored, similarity=similarity, ties=ties, **options)
        for rule, of_rule in rules.items():
            alone = evaluate(similarity, x, labels, ignored=ignored, ties=rule, **options)
            assert_same(of_rule.per_query, alone)


@pytest.mark.nightly
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_doubled_negative_moves_what_its_rule_of_ties_says(rows: Rows, similarity: Any) -> None:
    """Copies come after their originals, so each moves the positives behind it by one rank."""
    x, labels = rows.of(similarity), rows.labels
    copies = np.arange(0, N, 7)
    gallery = np.concatenate([x, x[copies]])
    others = np.concatenate([labels, np.full(len(copies), -1)])
    options: dict[str, Any] = {"average_precision": True, "indices": np.arange(N), "recall_at": (1,)}
    without = evaluate(
        similarity, x, labels, gallery, others, ignored=listed([range(N, len(gallery))] * N), **options
    )
    assert_same(without, evaluate(similarity, x, labels, x, labels, **options))
    rules = {
        ties: evaluate(similarity, x, labels, gallery, others, ties=ties, **options)
        for ties in ("optimistic", "index", "expected", "pessimistic")
    }
    (order,) = ours.knn_shards([x], [gallery], len(gallery) - 1, similarity=similarity, indices=np.arange(N))[
        1:
    ]
    first = (others[order] == labels[:, None]).argmax(axis=1) + 1
    np.testing.assert_array_equal(rules["index"]["reciprocal_rank"], 1 / first)
    if (
        similarity != "hamming"
    ):  # only copies tie, each with its original: a negative but for queries of its class
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
    def search(self, similarity: str, *arguments: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        if similarity == "hamming":
            return ours.knn_codes(*arguments, **options)
        return ours.knn(*arguments, similarity=similarity, **options)  # type: ignore[arg-type]

    @pytest.mark.parametrize("k", [1, 10, 90, 1000])
    def test_neighbours_are_those_of_one_call_for_each_query_and_of_any_other_way(
        self, rows: Rows, similarity: str, k: int
    ) -> None:
        x = rows.of(similarity)
        scores, items = self.search(similarity, x, None, k, exclude_self=True)
        for q in range(0, N, 3):
            one = self.search(similarity, x[q : q + 1], x, k, indices=[q])
            assert one[0].tobytes() == scores[q].tobytes()
            assert one[1].tobytes() == items[q].tobytes()
        for kernel in _native.kernels():
            for sizes in (
                {"directions": 0},
                {"directions": 30},
                {"table_neighbours": 0},
                {"few_queries": 2**40},
            ):
                with trial(kernel=kernel, **sizes):
                    again = self.search(similarity, x, None, k, exclude_self=True)
                assert again[0].tobytes() == scores.tobytes()
                assert again[1].tobytes() == items.tobytes()
        more, _ = self.search(similarity, x, None, k + 1, exclude_self=True)
        assert more[:, :k].tobytes() == scores.tobytes()

    def test_the_order_of_queries_and_of_the_gallery_changes_no_score(
        self, rows: Rows, similarity: str
    ) -> None:
        x = rows.of(similarity)
        queries, items = (np.random.default_rng(seed).permutation(N) for seed in (3, 4))
        scores, _ = self.search(similarity, x, x, 20)
        again, found = self.search(similarity, x[queries], x[items], 20)
        assert again.tobytes() == scores[queries].tobytes()
        in_parts = ours.knn_shards([x[:500], x[500:]], None, 20, similarity=similarity, block=700)  # type: ignore[arg-type]
        assert in_parts[0].tobytes() == scores.tobytes()
        assert (np.sort(items[found], axis=1)[:, 1:] > np.sort(items[found], axis=1)[:, :-1]).all()

    def test_a_range_and_the_recall_of_an_index_are_those_of_all_neighbours(
        self, rows: Rows, similarity: Any
    ) -> None:
        if similarity == "hamming":
            pytest.skip("codes have neither a range search nor the recall of an index")
        x = rows.x
        scores, items = ours.knn(x, None, 200, similarity=similarity)
        threshold = float(np.quantile(scores, 0.9))
        offsets, found, similarities = ours.range_search(x, x.copy(), threshold, similarity=similarity)
        own = ours.range_search(x, None, threshold, similarity=similarity)
        for a, b in zip((offsets, found, similarities), own):
            assert a.tobytes() == b.tobytes()
        for q in range(N):
            mine = found[offsets[q] : offsets[q + 1]]
            assert mine[:200].tolist() == items[q, : len(mine)].tolist()
            # Float64 decides in the range; its scores are rounded to float32 here.
            assert len(mine) >= 200 or scores[q, len(mine)] <= np.float32(threshold)
        recall = ours.index_recall(items[:, :50], x, x.copy(), 50, similarity=similarity)
        assert recall.per_query.tolist() == [1.0] * N

    def test_hard_negatives_are_the_first_neighbours_of_other_classes(
        self, rows: Rows, similarity: Any
    ) -> None:
        if similarity == "hamming":
            pytest.skip("codes have no hard negatives")
        x, labels = rows.x, rows.labels
        order = ours.knn(x, None, 60, similarity=similarity, exclude_self=True)[1]
        found = ours.hard_negatives(x, labels, 5, similarity=similarity)[1]
        for q in range(N):
            expected = [i for i in order[q] if labels[i] != labels[q]][:5]
            assert found[q].tolist() == expected

    @pytest.mark.parametrize("below", ["hardest", "easiest"])
    def test_hard_negatives_below_a_bound_are_behind_a_positive(
        self, rows: Rows, similarity: Any, below: Any
    ) -> None:
        if similarity == "hamming":
            pytest.skip("codes have no hard negatives")
        x, labels = rows.x[:900], rows.labels[:900]
        similarities, order = ours.knn(x, None, 899, similarity=similarity, exclude_self=True)
        found = ours.hard_negatives(x, labels, 5, below=below, similarity=similarity)[1]
        for q in range(900):
            is_positive = labels[order[q]] == labels[q]
            of_positives = similarities[q][is_positive]
            bound = (
                min(of_positives, default=np.inf) if below == "hardest" else max(of_positives, default=np.inf)
            )
            if (similarities[q][~is_positive] == bound).any():  # float64 may tell them apart
                continue
            expected = order[q][~is_positive & (similarities[q] < bound)][:5]
            assert found[q][found[q] >= 0].tolist() == expected.tolist()


@pytest.mark.nightly
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_a_verification_is_that_of_its_pairs_in_any_order(rows: Rows, similarity: Any) -> None:
    x, labels = rows.x[:900], rows.labels[:900]
    far = (0.1, 1e-3, 1e-4)
    whole = ours.verify(x, labels, similarity=similarity, far=far).to_dict()
    i, j = np.triu_indices(len(x), 1)
    order = np.random.default_rng(5).permutation(len(i))
    pairs = np.stack([i, j], 1)[order]
    assert ours.verify(x, labels, pairs=pairs, similarity=similarity, far=far).to_dict() == whole
    shuffled = np.random.default_rng(6).permutation(len(x))
    assert ours.verify(x[shuffled], labels[shuffled], similarity=similarity, far=far).to_dict() == whole
    for sizes in ({"verify_sample": 3000, "verify_listed": 4000}, {"table_item_words": 1, "slot_part": 100}):
        with trial(**sizes):
            assert ours.verify(x, labels, similarity=similarity, far=far).to_dict() == whole


@pytest.mark.nightly
def test_each_row_of_a_clustering_is_in_the_cluster_of_its_nearest_centroid(rows: Rows) -> None:
    found = ours.kmeans(rows.x, 60, seed=3)
    nearest = ours.knn(rows.x, found.centroids, 1, similarity="euclidean")[1]
    assert found.labels.tolist() == nearest[:, 0].tolist()
    for kernel in _native.kernels():
        with trial(kernel=kernel, table_neighbours=0, items_per_table_neighbour=2**40):
            again = ours.kmeans(rows.x, 60, seed=3)
        assert again.labels.tobytes() == found.labels.tobytes()
        assert again.centroids.tobytes() == found.centroids.tobytes()

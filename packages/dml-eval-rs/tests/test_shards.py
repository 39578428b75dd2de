"""Shards give the bits of a single call, for any shards and blocks, any order of results, and
repeated tasks.
"""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from eval_support.assertions import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import (
    Labels,
    Relevance,
    evaluate,
    evaluate_shards,
    knn,
    knn_shards,
    verify,
    verify_shards,
)
from dml_eval_rs.shards import verification

N = 160
RNG = np.random.default_rng(0)
X = (RNG.integers(-2, 3, (N, 5)) + 0.5).astype(np.float32)
CODES = RNG.integers(0, 8, (N, 2)).astype(np.uint8)
# If there are 2 classes, both contain more than 32 items.
IDS = {classes: RNG.integers(0, classes, N) for classes in (2, 30, 100)}
GROUPS = RNG.integers(0, 3, N)
SIMILARITIES = ["cosine", "dot", "euclidean", "hamming"]
TIES = ["index", "optimistic", "pessimistic", "expected"]
METRICS = (
    "map@r",
    "recall@1",
    "recall@4",
    "precision@3",
    "map",
    "minp",
    "ndcg@5",
    "ir_recall@4",
    "mrr",
)


def rows_of(similarity: str) -> Any:
    return CODES if similarity == "hamming" else X


def shards_of(x: Any, cuts: list[int]) -> list[Any]:
    return np.split(x, sorted(cuts))


def some_lists(queries: int, most: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    items = [rng.choice(N, size, replace=False) for size in rng.integers(0, most, queries)]
    return np.cumsum([0, *map(len, items)]), np.concatenate(items)


def map_any(data: Any) -> Any:
    """Return a map that pickles tasks, as for another process, shuffles them, and runs some
    twice.
    """

    def run(function: Any, tasks: Any) -> list[Any]:
        tasks = [pickle.loads(pickle.dumps(task)) for task in tasks]
        again = data.draw(st.sampled_from([0, 1, 3]))
        results = [pickle.loads(pickle.dumps(function(task))) for task in tasks + tasks[:again]]
        return list(data.draw(st.permutations(results)))

    return run


def watch(see: Any) -> Any:
    """Return a map that calls a function with a task before the task is run."""

    def run(function: Any, tasks: Any) -> Any:
        for task in tasks:
            see(task)
            yield function(task)

    return run


def labels_of(kind: str, classes: int, rows: slice, *, of_gallery: bool = True) -> Any:
    """Return labels for some rows; only the gallery should contain junk."""
    ids, groups = IDS[classes][rows], GROUPS[rows]
    junk = [0] if of_gallery and kind == "junk" else ()
    return {
        "array": ids,
        "strings": np.array([f"class {label}" for label in ids]),
        "groups": Labels(ids, groups),
        "junk": Labels(ids, junk=junk, distractors=[1]),
    }[kind]


cuts = st.lists(st.integers(0, N), max_size=4)
block = st.sampled_from([None, 1000, 61, 23])
kinds = st.sampled_from(["array", "strings", "groups", "junk"])
similarities = st.sampled_from(SIMILARITIES)


@given(
    cuts, block, st.sampled_from(TIES), similarities, kinds, st.sampled_from(list(IDS)), st.data()
)
def test_evaluate_in_any_order_and_twice_gives_the_bits_of_one_call(
    cuts: list[int],
    block: int | None,
    ties: Any,
    similarity: Any,
    kind: str,
    classes: int,
    data: Any,
) -> None:
    labels, x = labels_of(kind, classes, slice(None)), rows_of(similarity)
    options: Any = {"similarity": similarity, "ties": ties, "unmatched": "zero"}
    options |= data.draw(st.sampled_from([{}, {"metrics": METRICS}, {"metrics": "recall@1"}]))
    found = evaluate_shards(shards_of(x, cuts), labels, map=map_any(data), block=block, **options)
    assert_same_bits(found, evaluate(x, labels, **options))


@given(cuts, cuts, block, st.sampled_from(TIES), similarities, kinds, st.booleans())
def test_evaluate_with_a_gallery_gives_the_bits_of_one_call(
    cuts: list[int],
    query_cuts: list[int],
    block: int | None,
    ties: Any,
    similarity: Any,
    kind: str,
    own: bool,
) -> None:
    queries, x = slice(20, 90), rows_of(similarity)
    labels = labels_of(kind, 30, queries, of_gallery=False), labels_of(kind, 30, slice(None))
    options: Any = {"similarity": similarity, "ties": ties, "unmatched": "zero", "metrics": METRICS}
    options |= {"exclude": np.where(np.arange(20, 90) % 3, np.arange(20, 90), -1)} if own else {}
    parts, gallery = shards_of(x[queries], [cut % 70 for cut in query_cuts]), shards_of(x, cuts)
    found = evaluate_shards(parts, labels[0], gallery, labels[1], block=block, **options)
    assert_same_bits(found, evaluate(x[queries], labels[0], x, labels[1], **options))


@given(
    cuts,
    block,
    st.sampled_from(TIES),
    similarities,
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_listed_matches_and_ignored_items_give_the_bits_of_one_call(
    cuts: list[int],
    block: int | None,
    ties: Any,
    similarity: Any,
    by_labels: bool,
    apart: bool,
    seed: int,
) -> None:
    x, queries = rows_of(similarity), slice(20, 90) if apart else slice(None)
    n = len(x[queries])
    (offsets, items), ignored = some_lists(n, 4, seed), some_lists(n, 6, seed + 1)
    matches: Any = Relevance(offsets, items, items % 3, ignored=ignored)
    if by_labels:
        matches = Labels(IDS[30][queries], ignored=ignored)
    others = {"gallery_labels": IDS[30]} if by_labels and apart else {}
    options: Any = {
        "similarity": similarity,
        "ties": ties,
        "unmatched": "zero",
        "metrics": METRICS,
        **others,
    }
    options |= {"exclude": np.arange(20, 90)} if apart and seed % 2 else {}
    gallery = [shards_of(x, cuts), x] if apart else [None, None]
    parts = [x[queries]] if apart else shards_of(x, cuts)
    found = evaluate_shards(parts, matches, gallery[0], block=block, **options)
    assert_same_bits(found, evaluate(x[queries], matches, gallery[1], **options))


@given(
    cuts,
    block,
    st.sampled_from([1, 7, 100]),
    similarities,
    st.sampled_from([None, "same", "own"]),
    st.data(),
)
def test_neighbours_in_shards_are_those_of_one_call(
    cuts: list[int], block: int | None, k: int, similarity: Any, excluded: str | None, data: Any
) -> None:
    x, own = rows_of(similarity), np.where(np.arange(70) % 3, np.arange(70), -1)
    queries = slice(None) if excluded == "same" else slice(70)
    gallery = None if excluded == "same" else shards_of(x, cuts)
    options: Any = {None: {}, "same": {"exclude_self": True}, "own": {"exclude": own}}[excluded]
    options |= {"similarity": similarity}
    parts = shards_of(x, cuts) if gallery is None else [x[queries]]
    found = knn_shards(parts, gallery, k, map=map_any(data), block=block, **options)
    for a, b in zip(found, knn(x[queries], None if gallery is None else x, k, **options)):
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


VERIFIED = {
    "ties": X,
    "twins": RNG.normal(size=(30, 6)).astype(np.float32)[IDS[30]],
    "distinct": (RNG.normal(size=(30, 6))[IDS[30]] + 1.5 * RNG.normal(size=(N, 6))).astype(
        np.float64
    ),
    "half": RNG.normal(size=(N, 6)).astype(np.float16),
}
FAR = ("tar@far=0.5", "tar@far=0.1", "tar@far=1e-2", "tar@far=1e-3")
ASKED = [("auc", *FAR, "eer"), FAR, ("auc",), ("eer",), ("micro_ap",)]


@given(cuts, block, similarities, st.sampled_from(list(VERIFIED)), kinds, st.booleans(), st.data())
def test_verify_in_any_order_and_twice_gives_the_bits_of_one_call(
    cuts: list[int],
    block: int | None,
    similarity: Any,
    rows: str,
    kind: str,
    apart: bool,
    data: Any,
) -> None:
    x = CODES if similarity == "hamming" else VERIFIED[rows]
    classes = data.draw(st.sampled_from([2, 30])) if kind != "junk" else 30
    labels: Any = labels_of(kind, classes, slice(None))
    one: list[Any] = [x, labels]
    arguments: list[Any] = [shards_of(x, cuts), labels]
    if apart:
        queries = labels_of(kind, 30, slice(20, 90), of_gallery=False)
        labels = labels_of(kind, 30, slice(None))
        one = [x[20:90], queries, x, labels]
        arguments = [[x[20:50], x[50:90]], queries, shards_of(x, cuts), labels]
    options: Any = {"similarity": similarity, "metrics": data.draw(st.sampled_from(ASKED))}
    with pytest.MonkeyPatch.context() as patch:
        # If the sample is small, ranges are wrong and need extra passes.
        patch.setattr(verification, "_SAMPLE", data.draw(st.sampled_from([2, 200, 1 << 21])))
        patch.setattr(verification, "_KEPT", data.draw(st.sampled_from([100, 1000, 1 << 22])))
        patch.setattr(verification, "_LEAST_KEPT", data.draw(st.sampled_from([10, 1 << 16])))
        found = verify_shards(*arguments, map=map_any(data), block=block, **options)
    assert_same_bits(found, verify(*one, **options))


@pytest.mark.parametrize(
    ("similarity", "metrics", "passes"),
    [("cosine", FAR, 2), ("cosine", ("auc",), 2), ("hamming", ("eer", "auc"), 1)],
)
def test_verify_takes_two_passes_over_ordinary_rows_and_one_over_codes(
    similarity: Any, metrics: Any, passes: int
) -> None:
    x, done, keys = (
        CODES if similarity == "hamming" else VERIFIED["distinct"],
        list[Any](),
        list[Any](),
    )

    def noting(function: Any, tasks: Any) -> Any:
        for task in tasks:
            keys.append(task[0].key)
            yield function(task)

    options: Any = {
        "similarity": similarity,
        "metrics": metrics,
        "progress": lambda *pairs: done.append(pairs),
    }
    verify_shards([x], IDS[30], map=noting, block=40, **options)
    assert len(keys) == len(set(keys)) == passes * 10  # the pairs of 4 blocks, once per pass
    assert done[-1] == (passes * N * (N - 1) // 2,) * 2


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
def test_every_float_is_measured_as_by_evaluate(dtype: str) -> None:
    x = X.astype(dtype)
    assert_same_bits(evaluate_shards(np.split(x, 4), IDS[30], block=50), evaluate(x, IDS[30]))
    assert_same_bits(verify_shards(np.split(x, 4), IDS[30], block=50), verify(x, IDS[30]))


def test_junk_may_hold_any_numbers_and_is_not_read() -> None:
    x = X.copy()
    x[IDS[30] == 3] = np.nan
    labels = Labels(IDS[30], junk=3)
    found = evaluate_shards(np.split(x, 4), labels, block=50)
    assert_same_bits(found, evaluate(X, labels))
    assert_same_bits(verify_shards(np.split(x, 4), labels, block=50), verify(X, labels))
    x[41] = np.inf
    with pytest.raises(ValueError, match=r"shards\[1\] row 1 holds NaN or infinity"):
        verify_shards(np.split(x, 4), labels, block=50)


def test_labels_that_change_during_a_call_change_nothing() -> None:
    ids, groups = IDS[30].copy(), GROUPS.copy()
    expected = (
        evaluate(X, Labels(ids.copy(), groups.copy())),
        verify(X, Labels(ids.copy(), groups.copy())),
    )

    def change(task: Any) -> None:
        ids[:] += 1
        groups[:] = 0

    for measure, whole in zip((evaluate_shards, verify_shards), expected):
        ids[:], groups[:] = IDS[30], GROUPS
        found: Any = measure(np.split(X, 4), Labels(ids, groups), map=watch(change), block=50)
        assert_same_bits(found, whole)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{place}.npy" for place in range(3)]
    for path, part in zip(paths, np.array_split(X, 3)):
        np.save(path, part)
    return paths


def test_files_functions_and_arrays_are_the_same_shards(paths: list[Path]) -> None:
    calls = 0

    def load() -> Any:
        nonlocal calls
        calls += 1
        return np.load(paths[1])

    done: list[tuple[int, int]] = []
    with ThreadPoolExecutor(3) as executor:
        found = evaluate_shards(
            [str(paths[0]), load, np.load(paths[2])],
            IDS[30],
            map=executor.map,
            block=40,
            threads=2,
            progress=lambda *pairs: done.append(pairs),
        )
    assert_same_bits(found, evaluate(X, IDS[30]))
    assert calls > 0
    assert done[-1] == (N * (N - 1) // 2,) * 2
    assert [pairs for pairs, _ in done] == sorted(pairs for pairs, _ in done)


def test_only_rows_that_may_have_matches_are_read_for_positives(paths: list[Path]) -> None:
    rows: Counter[str] = Counter()

    def count(task: Any) -> None:
        if task[0].key[0] != "describe":
            rows[task[0].key[0]] += sum(len(part) for part in task[1:3] if part is not None)

    evaluate_shards(paths, np.arange(N) // 2, map=watch(count), block=40)
    assert rows == {"positives": N, "count": 4 * 40 + 6 * 80}


def test_a_lost_task_is_named_and_a_retried_one_counts_once(paths: list[Path]) -> None:
    def losing(function: Any, tasks: Any) -> Any:
        return [function(task) for task in tasks if task[0].key != ("count", 0, 1)]

    message = (
        r"no result for 1 of 3 tasks, the first for shards\[0\] .* with shards\[0\] .* to "
        r"shards\[1\]"
    )
    with pytest.raises(ValueError, match=message):
        evaluate_shards(paths, IDS[30], map=losing, block=60)

    def retrying(function: Any, tasks: Any) -> Any:
        first = next(tasks)
        function(first)  # the result is lost, as if the worker died
        return map(function, [first, *tasks])

    assert_same_bits(evaluate_shards(paths, IDS[30], map=retrying, block=60), evaluate(X, IDS[30]))


def test_a_map_that_returns_other_things_is_refused(paths: list[Path]) -> None:
    with pytest.raises(TypeError, match="map returned a int; expected the function's results"):
        evaluate_shards(paths, IDS[30], map=lambda function, tasks: [1])
    kept: list[Any] = []

    def keeping(function: Any, tasks: Any) -> Any:
        kept.extend(results := [*map(function, tasks)])
        return results

    evaluate_shards(paths, IDS[30], map=keeping)
    with pytest.raises(ValueError, match="a result from a different call"):
        evaluate_shards(
            paths, IDS[30], map=lambda f, tasks: [*kept, *map(f, tasks)], ties="expected"
        )


def test_a_worker_with_another_version_is_named(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dml_eval_rs.shards.tasks.VERSION", "9.9")
    with pytest.raises(
        ValueError, match=r"dml-eval-rs is 9.9 on .* and .* in the driver; expected the same"
    ):
        evaluate_shards(paths, IDS[30])


PART = np.array_split(X, 3)[1]
CHANGED = PART.copy()
CHANGED[17, 2] += 1


@pytest.mark.parametrize(
    ("measure", "kind", "rows", "message"),
    [
        (evaluate_shards, ("count", 1, 1), CHANGED,
         r"shards\[1\] \(.*1.npy\) row 17 changed between two tasks"),
        (verify_shards, ("pass 1", 1, 1), PART + 1,
         r"shards\[1\] \(.*1.npy\) row \d+ changed between two tasks"),
        (evaluate_shards, ("count",), X[:5],
         r"has shape \(5, 5\).*but had \(53, 5\).*before: don't change shards"),
    ],
    ids=["a number", "all rows", "the shape"],
)  # fmt: skip
def test_a_shard_that_changes_between_tasks_is_named_with_its_row(
    measure: Any, kind: Any, rows: Any, message: str, paths: list[Path]
) -> None:
    def change(task: Any) -> None:
        if task[0].key[: len(kind)] == kind:
            np.save(paths[1], rows)

    with pytest.raises(ValueError, match=message):
        measure(paths, IDS[2], map=watch(change), block=40)


NAME = r"(shards|queries)\[1\] "
BAD: dict[str, tuple[Any, str]] = {
    "width": (
        np.ones((4, 6), np.float32),
        r"has shape \(4, 6\).*\(4, 5\) and float32, like .*\[0\]",
    ),
    "dtype": (np.ones((4, 5)), r"has shape \(4, 5\) and dtype float64; expected .*float32"),
    "absent": ("absent.npy", r"\(absent.npy\) is absent on .*shared folder"),
    "text": (Path(__file__), r"\(.*\) can't be read on .*is not a .npy file"),
    "NaN": (np.full((4, 5), np.nan, np.float32), "row 0 holds NaN or infinity"),
    "zeros": (np.zeros((4, 5), np.float32), "row 0 is all zeros"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", ["evaluate", "knn", "verify"])
def test_a_bad_shard_is_named(name: str, case: str) -> None:
    shard, message = BAD[case]
    parts, labels = [X, shard], np.arange(N + 4) // 2
    call = {
        "evaluate": lambda: evaluate_shards(parts, labels),
        "knn": lambda: knn_shards(parts, None, 2),
        "verify": lambda: verify_shards(parts, labels),
    }
    with pytest.raises(ValueError, match=NAME + message):
        call[name]()


PAIR = Relevance(np.arange(N + 1), np.arange(N))


@pytest.mark.parametrize(
    ("measure", "arguments", "options", "error", "message"),
    [
        (evaluate_shards, (X, IDS[30]), {}, TypeError,
         "shards is a ndarray; expected a list of shards"),
        (evaluate_shards, ([], IDS[30]), {}, ValueError, "shards is empty"),
        (evaluate_shards, ([X[:0]], []), {}, ValueError, "shards has no rows"),
        (evaluate_shards, ([X], IDS[30][:9]), {}, ValueError,
         r"shape \(9,\); expected \(160,\) to match shards"),
        (evaluate_shards, ([X], None), {}, TypeError, "labels is None"),
        (evaluate_shards, ([X], IDS[30]), {"metrics": "nmi"}, ValueError,
         "'nmi'; expected retrieval metrics"),
        (evaluate_shards, ([X], IDS[30]), {"n_clusters": 3}, ValueError,
         "no clustering metric is requested"),
        (evaluate_shards, ([X], IDS[30]), {"peers": None}, TypeError,
         "can't use peers, because map divides the work"),
        (evaluate_shards, ([X], IDS[30]), {"typo": 1}, TypeError,
         "unexpected keyword argument 'typo'"),
        (evaluate_shards, ([X], IDS[30]), {"block": 0}, ValueError,
         "block is 0; expected at least 1"),
        (evaluate_shards, ([X], np.arange(N)), {}, ValueError,
         "none of the 160 queries has a match"),
        (evaluate_shards, ([CODES], IDS[30]), {}, TypeError,
         r"shards\[0\] has dtype uint8.*similarity='hamming'"),
        (evaluate_shards, ([X], IDS[30]), {"similarity": "hamming"}, TypeError,
         r"binarize\(shards\[0\]\)"),
        (evaluate_shards, ([X, X], [*IDS[30]] * 2), {"gallery": [X]}, ValueError,
         "gallery is given without"),
        (evaluate_shards, ([X], PAIR, [X], IDS[30]), {}, ValueError,
         "gallery_labels and a Relevance are both given"),
        (evaluate_shards, ([X], PAIR, [X[:9]]), {}, ValueError,
         "Relevance lists item 9 for query 9"),
        (evaluate_shards, ([X], Labels(IDS[30], junk=1), [X], IDS[30]), {}, ValueError,
         "labels have junk"),
        (verify_shards, (X, IDS[30]), {}, TypeError,
         "shards is a ndarray; expected a list of shards"),
        (verify_shards, ([X], IDS[30]), {"metrics": "recall@1"}, ValueError, "'recall@1'"),
        (verify_shards, ([X], IDS[30]), {"metrics": "accuracy"}, ValueError,
         "expected pairs and folds"),
        (verify_shards, ([X], IDS[30]), {"similarity": "l2"}, ValueError, "similarity is 'l2'"),
        (verify_shards, ([X], IDS[30]), {"block": 0}, ValueError,
         "block is 0; expected at least 1"),
        (verify_shards, ([X], IDS[30], [X]), {}, ValueError,
         "gallery is given without gallery_labels"),
        (verify_shards, ([X], PAIR), {}, ValueError,
         "labels is a Relevance; expected an array or Labels"),
        (verify_shards, ([X], np.arange(N)), {}, ValueError,
         "none of the 12720 pairs has equal labels"),
        (verify_shards, ([X], np.zeros(N, int)), {}, ValueError, "all 12720 pairs match"),
        (knn_shards, ([X], None, 160), {"exclude_self": True}, ValueError,
         "k is 160; expected 1 to 159"),
        (knn_shards, (X, None, 1), {}, TypeError,
         "queries is a ndarray; expected a list of shards"),
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_bad_arguments_are_errors(
    measure: Any, arguments: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        measure(*arguments, **options)

"""Shards give the bits of one call, for any shards, blocks, order of results, and tasks that run twice."""

from __future__ import annotations

import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from eval_support.assertions import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import evaluate, evaluate_codes, evaluate_shards, knn, knn_codes, knn_shards

N = 160
RNG = np.random.default_rng(0)
X = (RNG.integers(-2, 3, (N, 5)) + 0.5).astype(np.float32)
CODES = RNG.integers(0, 8, (N, 2)).astype(np.uint8)
LABELS = {classes: RNG.integers(0, classes, N) for classes in (2, 30, 100)}  # of two, more than 32 items each
TIES = ("index", "optimistic", "pessimistic", "expected")
OPTIONS: dict[str, Any] = {
    "defaults": {},
    "junk": {"junk": [0]},
    "distractors": {"distractors": [1], "unmatched": "zero"},
    "groups": {"groups": RNG.integers(0, 3, N), "unmatched": "zero"},
    "more metrics": {"average_precision": True, "ndcg_at": [5], "precision_at": [3], "recall_at": [1, 4]},
    "dot": {"similarity": "dot"},
    "euclidean": {"similarity": "euclidean"},
}


def shards_of(x: Any, cuts: list[int]) -> list[Any]:
    return np.split(x, sorted(cuts))


def some_lists(most: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    items = [np.sort(rng.choice(N, size, replace=False)) for size in rng.integers(0, most, N)]
    return np.cumsum([0, *map(len, items)]), np.concatenate(items)


cuts = st.lists(st.integers(0, N), max_size=4)
block = st.sampled_from([None, 1000, 61, 23])


@given(
    cuts,
    block,
    st.sampled_from(TIES),
    st.sampled_from(list(LABELS)),
    st.sampled_from(list(OPTIONS)),
    st.data(),
)
def test_shards_in_any_order_and_twice_give_the_bits_of_one_call(
    cuts: list[int], block: int | None, ties: Any, classes: int, options: str, data: Any
) -> None:
    def map_any(function: Any, tasks: Any) -> list[Any]:
        tasks = [pickle.loads(pickle.dumps(task)) for task in tasks]  # as another process gets them
        again = data.draw(st.sampled_from([0, 1, 3]))
        results = [function(task) for task in tasks + tasks[:again]]
        return list(data.draw(st.permutations(results)))

    found = evaluate_shards(
        shards_of(X, cuts), LABELS[classes], map=map_any, block=block, ties=ties, **OPTIONS[options]
    )
    assert_same_bits(found, evaluate(X, LABELS[classes], ties=ties, **OPTIONS[options]))


@given(cuts, block, st.sampled_from(TIES), st.booleans())
def test_codes_and_lists_give_the_bits_of_one_call(
    cuts: list[int], block: int | None, ties: Any, with_labels: bool
) -> None:
    codes = evaluate_shards(shards_of(CODES, cuts), LABELS[30], similarity="hamming", block=block, ties=ties)
    assert_same_bits(codes, evaluate_codes(CODES, LABELS[30], ties=ties))
    offsets, items = some_lists(4, 1)
    options: dict[str, Any] = {"ignored": some_lists(6, 2)}
    options |= (
        {"labels": LABELS[30]} if with_labels else {"relevant": (offsets, items, items % 3), "ndcg_at": [4]}
    )
    found = evaluate_shards(shards_of(X, cuts), block=block, ties=ties, **options)
    assert_same_bits(found, evaluate(X, ties=ties, **options))


@given(
    cuts,
    st.lists(st.integers(0, 70), max_size=2),
    block,
    st.sampled_from(TIES),
    st.sampled_from(["own", "groups", "junk"]),
)
def test_a_separate_gallery_gives_the_bits_of_one_call(
    cuts: list[int], query_cuts: list[int], block: int | None, ties: Any, case: str
) -> None:
    labels, queries = LABELS[30], slice(20, 90)
    options: Any = {
        "own": {"indices": np.where(np.arange(20, 90) % 3, np.arange(20, 90), -1)},
        "groups": {"groups": labels[queries] % 4, "gallery_groups": np.arange(N) % 4},
        "junk": {"junk": [3, 4], "distractors": [5], "indices": np.arange(20, 90)},
    }[case]
    options |= {"ties": ties, "unmatched": "zero"}
    parts = shards_of(X[queries], query_cuts)
    found = evaluate_shards(parts, labels[queries], shards_of(X, cuts), labels, block=block, **options)
    assert_same_bits(found, evaluate(X[queries], labels[queries], X, labels, **options))


@given(
    cuts,
    block,
    st.sampled_from([1, 7, 100]),
    st.sampled_from(["cosine", "dot", "euclidean", "hamming"]),
    st.sampled_from([None, "same", "own"]),
)
def test_neighbours_in_shards_are_those_of_one_call(
    cuts: list[int], block: int | None, k: int, similarity: Any, leaves_out: str | None
) -> None:
    x, own = CODES if similarity == "hamming" else X, np.where(np.arange(70) % 3, np.arange(70), -1)
    queries = slice(None) if leaves_out == "same" else slice(70)
    gallery = None if leaves_out == "same" else shards_of(x, cuts)
    options: Any = {None: {}, "same": {"exclude_self": True}, "own": {"indices": own}}[leaves_out]
    parts = shards_of(x, cuts) if gallery is None else [x[queries]]
    found = knn_shards(parts, gallery, k, block=block, similarity=similarity, **options)
    whole = None if gallery is None else x
    expected = (
        knn_codes(x[queries], whole, k, **options)
        if similarity == "hamming"
        else knn(x[queries], whole, k, similarity=similarity, **options)
    )
    for a, b in zip(found, expected):
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


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
            LABELS[30],
            map=executor.map,
            block=40,
            threads=2,
            progress=lambda *pairs: done.append(pairs),
        )
    assert_same_bits(found, evaluate(X, LABELS[30]))
    assert calls > 0
    assert done[-1] == (N * (N - 1) // 2,) * 2
    assert [pairs for pairs, _ in done] == sorted(pairs for pairs, _ in done)


def test_only_rows_that_may_have_matches_are_read_for_positives(paths: list[Path]) -> None:
    rows: dict[str, int] = {}

    def counting(function: Any, tasks: Any) -> Any:
        for task in tasks:
            if task[0].key[0] != "describe":
                read = sum(len(part) for part in task[1:3] if part is not None)
                rows[task[0].key[0]] = rows.get(task[0].key[0], 0) + read
            yield function(task)

    evaluate_shards(paths, np.arange(N) // 2, map=counting, block=40)
    assert rows == {"positives": N, "count": 4 * 40 + 6 * 80}


def test_a_lost_task_is_named_and_a_retried_one_counts_once(paths: list[Path]) -> None:
    def losing(function: Any, tasks: Any) -> Any:
        return [function(task) for task in tasks if task[0].key != ("count", 0, 1)]

    with pytest.raises(
        ValueError,
        match=r"no result of 1 of 3 tasks, first that of shards\[0\] .* with shards\[0\] .* to shards\[1\]",
    ):
        evaluate_shards(paths, LABELS[30], map=losing, block=60)

    failed = []

    def retrying(function: Any, tasks: Any) -> Any:
        for task in tasks:
            if not failed:
                failed.append(function(task))  # its worker dies before it answers
            yield function(task)

    assert_same_bits(evaluate_shards(paths, LABELS[30], map=retrying, block=60), evaluate(X, LABELS[30]))


def test_a_map_that_returns_other_things_is_refused(paths: list[Path]) -> None:
    with pytest.raises(TypeError, match="map returned a int; expected the results of the function"):
        evaluate_shards(paths, LABELS[30], map=lambda function, tasks: [1])
    kept: list[Any] = []

    def keeping(function: Any, tasks: Any) -> Any:
        kept.extend(results := [function(task) for task in tasks])
        return results

    evaluate_shards(paths, LABELS[30], map=keeping)
    with pytest.raises(ValueError, match="a result of another call"):
        evaluate_shards(
            paths, LABELS[30], map=lambda function, tasks: [*kept, *keeping(function, tasks)], ties="expected"
        )


def test_a_worker_with_another_version_is_named(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dml_eval_rs.shards.describing.__version__", "9.9")
    with pytest.raises(ValueError, match=r"dml-eval-rs is .* on .* and 9.9 in the driver; expected the same"):
        evaluate_shards(paths, LABELS[30])


def test_a_shard_that_changes_between_tasks_is_named_with_its_row(paths: list[Path]) -> None:
    def changing(function: Any, tasks: Any) -> Any:
        for task in tasks:
            if task[0].key == ("count", 1, 1):
                changed = np.load(paths[1])
                changed[17, 2] += 1
                np.save(paths[1], changed)
            yield function(task)

    with pytest.raises(ValueError, match=r"shards\[1\] \(.*1.npy\) row 17 changed between two tasks"):
        evaluate_shards(paths, LABELS[2], map=changing, block=40)

    def shrinking(function: Any, tasks: Any) -> Any:
        for task in tasks:
            if task[0].key[0] == "count":
                np.save(paths[1], X[:5])
            yield function(task)

    with pytest.raises(
        ValueError, match=r"shards\[1\] .* has shape \(5, 5\).*expected \(53, 5\).*as at the beginning"
    ):
        evaluate_shards(paths, LABELS[2], map=shrinking, block=40)


BAD: list[tuple[str, Any, str]] = [
    (
        "width",
        np.ones((4, 6), np.float32),
        r"(shards|queries)\[1\] has shape \(4, 6\).*expected \(4, 5\) and float32, as (shards|queries)\[0\]",
    ),
    (
        "dtype",
        np.ones((4, 5)),
        r"(shards|queries)\[1\] has shape \(4, 5\) and dtype float64; expected .*float32",
    ),
    ("absent", "absent.npy", r"(shards|queries)\[1\] \(absent.npy\) is absent on .*shared folder"),
    ("text", Path(__file__), r"(shards|queries)\[1\] \(.*\) can't be read on .*expected a .npy file"),
    ("NaN", np.full((4, 5), np.nan, np.float32), r"(shards|queries)\[1\] row 0 holds NaN or infinity"),
    ("zeros", np.zeros((4, 5), np.float32), r"(shards|queries)\[1\] row 0 is all zeros"),
]


@pytest.mark.parametrize(("shard", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
@pytest.mark.parametrize("name", ["evaluate", "knn"])
def test_a_bad_shard_is_named(name: str, shard: Any, message: str) -> None:
    parts = [X, shard]
    call = {
        "evaluate": lambda: evaluate_shards(parts, np.arange(N + 4) // 2),
        "knn": lambda: knn_shards(parts, None, 2),
    }
    with pytest.raises(ValueError, match=message):
        call[name]()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((X, LABELS[30]), {}, TypeError, "shards is a ndarray; expected a list of shards"),
        (([], LABELS[30]), {}, ValueError, "shards is empty"),
        (([X[:0]], []), {}, ValueError, "shards hold no rows"),
        (([X], LABELS[30][:9]), {}, ValueError, r"labels has shape \(9,\); expected \(160,\) to match the shards"),
        (([X], LABELS[30]), {"nmi": True}, TypeError, "takes no nmi: it clusters all embeddings in one process"),
        (([X], LABELS[30]), {"peers": None}, TypeError, "takes no peers: map divides the work"),
        (([X], LABELS[30]), {"typo": 1}, TypeError, "unexpected keyword argument 'typo'"),
        (([X], LABELS[30]), {"block": 0}, ValueError, "block is 0; expected at least 1"),
        (([X], np.arange(N)), {}, ValueError, "none of the 160 queries has a match"),
        (([CODES], LABELS[30]), {}, TypeError, r"shards\[0\] has dtype uint8"),
        (([X, X], [*LABELS[30]] * 2), {"gallery": [X]}, ValueError, "gallery came without gallery_labels"),
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_bad_arguments_are_errors(arguments: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        evaluate_shards(*arguments, **options)

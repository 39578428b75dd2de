"""A gallery in blocks gives the bits of one call, for any blocks, order of blocks, and machines."""

from __future__ import annotations

import itertools
import pickle
import tracemalloc
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from eval_support.assertions import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import StreamingEvaluator, evaluate, evaluate_codes, partial_counts

RNG = np.random.default_rng(0)
GALLERY = RNG.integers(-2, 3, (90, 5)).astype(np.float32) + np.float32(0.5)
LABELS = RNG.integers(0, 12, 90)
QUERIES, QUERY_LABELS = GALLERY[:30], LABELS[:30]
TIES = ("index", "optimistic", "pessimistic", "expected")


def blocks(cuts: list[int]) -> list[slice]:
    edges = [0, *sorted(set(cuts)), 90]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


@given(
    cuts=st.lists(st.integers(1, 89), max_size=5),
    ties=st.sampled_from(TIES),
    similarity=st.sampled_from(["cosine", "dot", "euclidean"]),
    data=st.data(),
)
def test_blocks_in_any_order_give_the_bits_of_one_call(
    cuts: list[int], ties: Any, similarity: Any, data: Any
) -> None:
    parts = data.draw(st.permutations(blocks(cuts)))
    evaluator = StreamingEvaluator(QUERIES, QUERY_LABELS, similarity=similarity, ties=ties, recall_at=(1, 5))
    with patch.object(partial_counts, "_SORTED", data.draw(st.sampled_from([1, 20, 10**6]))):
        for part in parts:
            evaluator.find_positives(GALLERY[part], LABELS[part], part.start)
    for part in data.draw(st.permutations(parts)):
        evaluator.count_negatives(GALLERY[part], LABELS[part], part.start)
    whole = evaluate(
        QUERIES, QUERY_LABELS, GALLERY, LABELS, similarity=similarity, ties=ties, recall_at=(1, 5)
    )
    assert_same_bits(evaluator.result(), whole)


@pytest.mark.parametrize("ties", TIES)
def test_queries_from_the_gallery_leave_themselves_out_by_index(ties: Any) -> None:
    evaluator = StreamingEvaluator(GALLERY, LABELS, ties=ties, indices=np.arange(90))
    for step in (evaluator.find_positives, evaluator.count_negatives):
        for part in blocks([40, 70]):
            step(GALLERY[part], LABELS[part])
    assert_same_bits(evaluator.result(), evaluate(GALLERY, LABELS, ties=ties))


@pytest.mark.parametrize("what", ["queries", "integers", "strings", "variable strings", "indices"])
def test_queries_that_differ_in_the_last_entry_are_not_merged(what: str) -> None:
    if what == "variable strings" and not hasattr(np.dtypes, "StringDType"):
        pytest.skip("numpy 1 has no StringDType")

    def evaluator(last: int) -> StreamingEvaluator:
        changed = np.array([0] * 4999 + [last])
        labels = changed if what in ("integers", "strings", "variable strings") else np.zeros(5000, np.int64)
        if what in ("strings", "variable strings"):
            # Longer than the strings that a StringDType keeps in the array's own buffer.
            labels = np.char.add("a label of many letters ", labels.astype("U4"))
        if what == "variable strings":
            labels = labels.astype(np.dtypes.StringDType())
        codes = (changed if what == "queries" else np.zeros(5000))[:, None].astype(np.uint8)
        indices = changed if what == "indices" else None
        return StreamingEvaluator(codes, labels, similarity="hamming", indices=indices)

    evaluator(1).merge(evaluator(1))
    with pytest.raises(ValueError, match="differ in queries, labels or options"):
        evaluator(1).merge(evaluator(2))


def test_queries_and_positives_take_little_memory_beside_the_state() -> None:
    n = 500_000
    codes, labels = np.zeros((n, 1), np.uint8), np.arange(n) // 2
    offsets, keys, indices = np.arange(n + 1, dtype=np.uint64), np.zeros(n), np.arange(n, dtype=np.uint64)
    with patch.object(partial_counts, "_SORTED", 1000):
        tracemalloc.start()
        evaluator = StreamingEvaluator(codes, labels, similarity="hamming")
        created, creating = tracemalloc.get_traced_memory()
        partial = partial_counts.add_positives(
            evaluator.partial_counts(), "index", offsets, keys, indices, ()
        )
        joining = tracemalloc.get_traced_memory()[1] - created
        tracemalloc.stop()
    assert len(partial.keys) == n
    # Two numbers a query; then two more, and three a positive.
    assert creating < 2 * 8 * n + 2**20
    assert joining < (2 + 3) * 8 * n + 2**20


@pytest.mark.parametrize("ties", TIES)
def test_machines_merge_positives_and_counts(ties: Any) -> None:
    codes = np.packbits(GALLERY > 0, axis=1)
    parts = blocks([25, 60])
    shards = [StreamingEvaluator(codes[:30], QUERY_LABELS, similarity="hamming", ties=ties) for _ in parts]
    for shard, part in zip(shards, parts):
        shard.find_positives(codes[part], LABELS[part], part.start)
    sent = [pickle.loads(pickle.dumps(shard.partial_counts())) for shard in shards]
    for i, shard in enumerate(shards):
        for j, partial in enumerate(sent):
            if i != j:
                shard.merge(partial)
    for shard, part in zip(shards, parts):
        shard.count_negatives(codes[part], LABELS[part], part.start)
    for shard in shards[1:]:
        shards[0].merge(shard)
    assert_same_bits(shards[0].result(), evaluate_codes(codes[:30], QUERY_LABELS, codes, LABELS, ties=ties))


ITEM_DTYPES = (
    *("f2", "f4", "f8", ">f2", ">f4", ">f8", "g", "c8", "c16", "i1", "i4", "i8", "u1", "u8", "?"),
    *("O", "U", "S", "M8[s]", "m8[s]"),
)
LABEL_DTYPES = ("i1", "i8", ">i8", "u1", "u8", ">u8", "?", "U", ">U2", "S", "f4", "f8", "c8", "O", "M8[s]")


def outcome(measure: Any, *arguments: Any, **options: Any) -> object:
    """What a call gives: the bits of every query's values, or the error's class."""
    try:
        found = measure(*arguments, **options)
    except (TypeError, ValueError) as error:
        return type(error)
    return {name: values.tobytes() for name, values in found.per_query.items()}


def in_blocks(queries: Any, query_labels: Any, gallery: Any, labels: Any, **options: Any) -> Any:
    evaluator = StreamingEvaluator(queries, query_labels, **options)
    for step in (evaluator.find_positives, evaluator.count_negatives):
        for block in (slice(0, 7), slice(7, None)):
            step(gallery[block], labels[block])
    return evaluator.result()


def cast(x: np.ndarray, dtype: str) -> np.ndarray:
    return x.astype(np.int64).astype(dtype) if dtype[0] in "Mm" else x.astype(dtype)


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "hamming"])
def test_it_takes_the_dtypes_of_evaluate_and_gives_the_same_bits(similarity: Any) -> None:
    queries, gallery = 3 * RNG.random((12, 5)) + 1, 3 * RNG.random((20, 5)) + 1
    query_labels, labels = np.arange(12) % 4, np.arange(20) % 4
    taken = set()
    for pair in itertools.product(ITEM_DTYPES, repeat=2):
        q, g = cast(queries, pair[0]), cast(gallery, pair[1])
        if similarity == "hamming":
            whole = outcome(evaluate_codes, q, query_labels, g, labels)
        else:
            whole = outcome(evaluate, q, query_labels, g, labels, similarity=similarity)
        assert outcome(in_blocks, q, query_labels, g, labels, similarity=similarity) == whole, pair
        taken |= {pair} if isinstance(whole, dict) else set()
    floats = ["f2", "f4", "f8", ">f2", ">f4", ">f8"]
    assert taken == ({("u1", "u1")} if similarity == "hamming" else set(itertools.product(floats, repeat=2)))


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_it_takes_the_labels_of_evaluate() -> None:
    queries, gallery = RNG.random((12, 5)), RNG.random((20, 5))
    taken = set()
    for pair in itertools.product(LABEL_DTYPES, repeat=2):
        query_labels, labels = cast(np.arange(12) % 4, pair[0]), cast(np.arange(20) % 4, pair[1])
        whole = outcome(evaluate, queries, query_labels, gallery, labels)
        assert outcome(in_blocks, queries, query_labels, gallery, labels) == whole, pair
        taken |= {pair} if isinstance(whole, dict) else set()
    integers, strings = (*LABEL_DTYPES[:7], "O"), LABEL_DTYPES[7:9]
    alike = (integers, strings, ("S",))
    assert taken == {pair for kind in alike for pair in itertools.product(kind, repeat=2)}


def test_a_refused_block_leaves_the_evaluator_unchanged() -> None:
    evaluator = StreamingEvaluator(QUERIES, QUERY_LABELS)
    evaluator.find_positives(GALLERY, LABELS)
    evaluator.count_negatives(GALLERY[:50], LABELS[:50])
    before = pickle.dumps(evaluator.partial_counts())
    rest, labels = GALLERY[50:], LABELS[50:]
    broken = rest.copy()
    broken[3, 1] = np.nan
    for error, message, call in [
        (
            ValueError,
            r"block has shape \(40, 4\); expected \(40, 5\)",
            lambda: evaluator.count_negatives(rest[:, :4], labels),
        ),
        (
            TypeError,
            "block has dtype int64; expected float16, float32 or float64",
            lambda: evaluator.count_negatives(rest.astype(int), labels),
        ),
        (ValueError, r"labels has shape \(39,\)", lambda: evaluator.count_negatives(rest, labels[:-1])),
        (ValueError, "block row 3 holds NaN", lambda: evaluator.count_negatives(broken, labels)),
        (ValueError, "items 20 to 49 were given before", lambda: evaluator.count_negatives(rest, labels, 20)),
        (
            ValueError,
            "positives of items 60 to 99 were not found",
            lambda: evaluator.count_negatives(rest, labels, 60),
        ),
        (ValueError, "first_index is -1", lambda: evaluator.count_negatives(rest, labels, -1)),
        (
            ValueError,
            "first_index is 4611686018427387904",
            lambda: evaluator.count_negatives(rest, labels, 2**62),
        ),
        (ValueError, "50 items are counted already", lambda: evaluator.find_positives(rest, labels)),
        (ValueError, "50 of 90 items are counted", evaluator.result),
        (ValueError, "items 0 to 49 were given before", lambda: evaluator.merge(evaluator)),
        (
            ValueError,
            "differ in queries",
            lambda: evaluator.merge(StreamingEvaluator(QUERIES[:9], QUERY_LABELS[:9])),
        ),
        (
            ValueError,
            "positives of 90 items and the other of 0",
            lambda: evaluator.merge(StreamingEvaluator(QUERIES, QUERY_LABELS)),
        ),
    ]:
        with pytest.raises(error, match=message):
            call()
        assert pickle.dumps(evaluator.partial_counts()) == before
    evaluator.count_negatives(rest, labels)
    assert_same_bits(evaluator.result(), evaluate(QUERIES, QUERY_LABELS, GALLERY, LABELS))


def test_a_gallery_without_matches_has_no_result() -> None:
    evaluator = StreamingEvaluator(QUERIES, QUERY_LABELS)
    for step in (evaluator.find_positives, evaluator.count_negatives):
        step(GALLERY, LABELS + 100)
    with pytest.raises(ValueError, match="none of the 30 queries has a match"):
        evaluator.result()


def passes(evaluator: StreamingEvaluator, parts: list[slice], labels: Any = LABELS) -> None:
    """Feed these parts to both passes, the second with other labels if any are given."""
    for part in parts:
        evaluator.find_positives(GALLERY[part], LABELS[part], part.start)
    for part in parts:
        evaluator.count_negatives(GALLERY[part], labels[part], part.start)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([slice(0, 30), slice(60, 90)], "items 30 to 59 of the gallery were never given"),
        ([slice(10, 90)], "items 0 to 9 of the gallery were never given"),
    ],
)
def test_a_block_that_no_machine_was_given_is_named(parts: list[slice], message: str) -> None:
    evaluator = StreamingEvaluator(QUERIES, QUERY_LABELS)
    passes(evaluator, parts)
    with pytest.raises(ValueError, match=message):
        evaluator.result()


@given(place=st.integers(0, 89), cut=st.integers(1, 89))
def test_other_labels_in_the_second_pass_are_refused(place: int, cut: int) -> None:
    others = LABELS.copy()
    others[place] += 1
    evaluator = StreamingEvaluator(QUERIES, QUERY_LABELS)
    passes(evaluator, blocks([cut]), others)
    with pytest.raises(
        ValueError, match="the labels of some of the items 0 to 89 differ between find_positives"
    ):
        evaluator.result()


def test_labels_of_another_dtype_in_the_second_pass_are_the_same_labels() -> None:
    evaluator = StreamingEvaluator(QUERIES, QUERY_LABELS)
    passes(evaluator, blocks([50]), LABELS.astype(np.uint8))
    assert_same_bits(evaluator.result(), evaluate(QUERIES, QUERY_LABELS, GALLERY, LABELS))


@pytest.mark.parametrize("index", [2**62, -2, 2**64 - 1])
def test_an_index_that_no_item_has_is_refused(index: int) -> None:
    indices = np.array([0, index], dtype=np.uint64 if index > 0 else np.int64)
    with pytest.raises(ValueError, match=rf"indices has {index} at 1; expected -1, or an index from 0"):
        StreamingEvaluator(QUERIES[:2], QUERY_LABELS[:2], indices=indices)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": np.full(3, 2**40, np.uint64)}, "expected those of an evaluator|negatives of"),
        ({"keys": np.full(4, np.nan)}, "NaN"),
        ({"offsets": np.arange(31, dtype=np.uint64)[::-1].copy()}, "offsets"),
        ({"keys": np.zeros(4, np.float32)}, "dtypes"),
        ({"indices": np.zeros(3, np.uint64)}, "shapes"),
    ],
    ids=lambda part: part if isinstance(part, str) else next(iter(part)),
)
def test_crafted_counts_are_refused_and_change_nothing(change: dict[str, Any], message: str) -> None:
    mine, theirs = (StreamingEvaluator(QUERIES, QUERY_LABELS) for _ in range(2))
    theirs.find_positives(GALLERY[:40], LABELS[:40], 0)
    crafted = theirs.partial_counts()
    sizes = {"keys": len(crafted.keys), "indices": len(crafted.keys) - 1, "counts": len(crafted.counts)}
    change = {name: np.resize(value, sizes.get(name, len(value))) for name, value in change.items()}
    with pytest.raises(ValueError, match=message):
        mine.merge(replace(crafted, **change))
    assert mine.partial_counts().found == ()


@pytest.mark.parametrize("other", [None, 3, "counts", {}])
def test_anything_else_than_counts_is_no_merge(other: Any) -> None:
    with pytest.raises(TypeError, match="expected a StreamingEvaluator, or its partial_counts"):
        StreamingEvaluator(QUERIES, QUERY_LABELS).merge(other)

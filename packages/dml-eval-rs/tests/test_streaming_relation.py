"""Streams with listed matches, ignored items, junk and distractors: the bits of one call, for any blocks, machines."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from eval_support.assertions import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import StreamingEvaluator, evaluate, evaluate_codes

RNG = np.random.default_rng(0)
GALLERY = RNG.integers(-2, 3, (90, 5)).astype(np.float32) + np.float32(0.5)
CODES = np.packbits(GALLERY > 0, axis=1)
LABELS = RNG.integers(0, 12, 90)
TIES = ("index", "optimistic", "pessimistic", "expected")
METRICS: dict[str, Any] = {"recall_at": (1, 5), "ndcg_at": 7, "recall_share_at": 4, "average_precision": True}


def lists(draw: Any, *, graded: bool = False) -> tuple[Any, ...]:
    """Draw some items, in any order, for each of 30 queries."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    chosen = [rng.permutation(90)[: rng.integers(0, 9)] for _ in range(30)]
    offsets, items = np.cumsum([0, *map(len, chosen)]), np.concatenate(chosen)
    return (offsets, items, rng.integers(0, 4, len(items))) if graded else (offsets, items)


def streamed(rows: np.ndarray, labels: Any, parts: list[slice], **options: Any) -> StreamingEvaluator:
    evaluator = StreamingEvaluator(rows[:30], None if labels is None else labels[:30], **options)
    for step in (evaluator.find_positives, evaluator.count_negatives):
        for part in parts:
            step(rows[part], None if labels is None else labels[part], part.start)
    return evaluator


@pytest.mark.parametrize("relation", ["labels", "relevant", "graded"])
@given(ties=st.sampled_from(TIES), data=st.data())
def test_blocks_in_any_order_give_the_bits_of_one_call(relation: str, ties: Any, data: Any) -> None:
    similarity = data.draw(st.sampled_from(["cosine", "euclidean", "hamming"]))
    edges = [0, *sorted(data.draw(st.sets(st.integers(1, 89), max_size=4))), 90]
    parts = data.draw(st.permutations([slice(a, b) for a, b in itertools.pairwise(edges)]))
    options: dict[str, Any] = {"ties": ties, "unmatched": "zero", **METRICS}
    labels = LABELS if relation == "labels" else None
    if labels is None:
        options["relevant"] = lists(data.draw, graded=relation == "graded")
    elif data.draw(st.booleans()):
        options["distractors"] = [3, 7]
    if data.draw(st.booleans()):
        options["ignored"] = lists(data.draw)
    if data.draw(st.booleans()):
        options["indices"] = np.arange(30) - data.draw(st.integers(0, 1))
    rows = CODES if similarity == "hamming" else GALLERY
    found = streamed(rows, labels, parts, similarity=similarity, **options).result()
    given_labels = (None, rows, None) if labels is None else (labels[:30], rows, labels)
    if similarity == "hamming":
        whole = evaluate_codes(rows[:30], *given_labels, **options)
    else:
        whole = evaluate(rows[:30], *given_labels, similarity=similarity, **options)
    assert_same_bits(found, whole)


@pytest.mark.parametrize("ties", TIES)
def test_machines_merge_listed_matches_with_grades(ties: Any) -> None:
    rng = np.random.default_rng(1)
    query, item = np.nonzero(rng.random((30, 90)) < 0.1)
    relevant = (np.searchsorted(query, np.arange(31)), item, rng.integers(1, 5, len(item)))
    ignored = (np.arange(31), rng.integers(0, 90, 30))
    options: dict[str, Any] = {"relevant": relevant, "ignored": ignored, "ties": ties, **METRICS}
    parts = [slice(0, 25), slice(25, 60), slice(60, 90)]
    shards = [StreamingEvaluator(GALLERY[:30], **options) for _ in parts]
    for shard, part in zip(shards, parts):
        shard.find_positives(GALLERY[part], first_index=part.start)
    sent = [pickle.loads(pickle.dumps(shard.partial_counts())) for shard in shards]
    for i, shard in enumerate(shards):
        for j, partial in enumerate(sent):
            if i != j:
                shard.merge(partial)
        shard.count_negatives(GALLERY[parts[i]], first_index=parts[i].start)
    for shard in shards[1:]:
        shards[0].merge(shard)
    assert_same_bits(shards[0].result(), evaluate(GALLERY[:30], gallery=GALLERY, **options))


@pytest.mark.parametrize("similarity", ["cosine", "euclidean", "hamming"])
@given(ties=st.sampled_from(TIES), data=st.data())
def test_blocks_with_junk_give_the_bits_of_one_call(similarity: str, ties: Any, data: Any) -> None:
    """The passes come in different blocks, of which some may be junk alone."""
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    labels = np.repeat(rng.integers(0, 9, 18), 5)
    junk = data.draw(st.sets(st.integers(0, 8), max_size=6))
    options: dict[str, Any] = {"ties": ties, "unmatched": "zero", "junk": list(junk), **METRICS}
    if data.draw(st.booleans()):
        options["indices"] = np.arange(30) - data.draw(st.integers(0, 1))
    groups = rng.integers(0, 2, 90) if data.draw(st.booleans()) else None
    rows = CODES if similarity == "hamming" else GALLERY
    query_groups = None if groups is None else groups[:30]
    evaluator = StreamingEvaluator(
        rows[:30], labels[:30], similarity=similarity, groups=query_groups, **options
    )
    for find in (True, False):
        edges = [0, *sorted(data.draw(st.sets(st.integers(1, 89), max_size=9))), 90]
        for a, b in data.draw(st.permutations(list(itertools.pairwise(edges)))):
            if find:
                of_block = None if groups is None else groups[a:b]
                evaluator.find_positives(rows[a:b], labels[a:b], a, groups=of_block)
            else:
                evaluator.count_negatives(rows[a:b], labels[a:b], a)
    of_all: dict[str, Any] = {"groups": query_groups, "gallery_groups": groups, **options}
    if not junk.issuperset(labels):
        if similarity == "hamming":
            whole = evaluate_codes(rows[:30], labels[:30], rows, labels, **of_all)
        else:
            whole = evaluate(rows[:30], labels[:30], rows, labels, similarity=similarity, **of_all)
        assert_same_bits(evaluator.result(), whole)


def test_junk_may_hold_any_numbers() -> None:
    rows = GALLERY.copy()
    rows[LABELS == 3] = np.nan
    evaluator = StreamingEvaluator(GALLERY[:30], LABELS[:30], junk=3)
    evaluator.find_positives(rows, LABELS)
    evaluator.count_negatives(rows, LABELS)
    assert_same_bits(evaluator.result(), evaluate(GALLERY[:30], LABELS[:30], rows, LABELS, junk=3))
    place = int(np.flatnonzero(LABELS != 3)[40])
    rows[place] = np.inf
    with pytest.raises(ValueError, match=f"block row {place} holds NaN or infinity"):
        StreamingEvaluator(GALLERY[:30], LABELS[:30], junk=3).find_positives(rows, LABELS)


PAIR = ([0, 1, 2], [5, 9])


@pytest.mark.parametrize("option", ["relevant", "grades", "ignored", "junk", "distractors"])
def test_queries_with_other_relations_are_not_merged(option: str) -> None:
    def evaluator(last: int) -> StreamingEvaluator:
        options: dict[str, Any] = {"relevant": PAIR}
        if option == "relevant":
            options = {"relevant": ([0, 1, 2], [5, last])}
        elif option == "grades":
            options = {"relevant": (*PAIR, [1, last])}
        elif option == "ignored":
            options["ignored"] = ([0, 1, 2], [7, last])
        else:
            options = {"labels": [1, 2], option: [last]}
        return StreamingEvaluator(GALLERY[:2], **options)

    evaluator(1).merge(evaluator(1))
    with pytest.raises(ValueError, match="differ in queries, labels or options"):
        evaluator(1).merge(evaluator(2))


def test_wrong_relations_are_refused() -> None:
    queries = GALLERY[:2]
    for error, message, options in [
        (TypeError, "labels is None; expected the queries' labels, or relevant", {}),
        (ValueError, "labels came with relevant", {"labels": [0, 1], "relevant": PAIR}),
        (ValueError, "groups came with relevant", {"groups": [0, 1], "relevant": PAIR}),
        (ValueError, "junk came with relevant", {"junk": 1, "relevant": PAIR}),
        (ValueError, "ignored came with junk", {"labels": [0, 1], "junk": 1, "ignored": PAIR}),
        (ValueError, "distractors came with relevant", {"distractors": 1, "relevant": PAIR}),
        (ValueError, "relevant has 2 offsets; expected 3", {"relevant": ([0, 1], [5])}),
        (TypeError, "ignored is 3 arrays", {"labels": [0, 1], "ignored": (*PAIR, [1, 1])}),
    ]:
        with pytest.raises(error, match=message):
            StreamingEvaluator(queries, **options)
    by_lists, by_labels = StreamingEvaluator(queries, relevant=PAIR), StreamingEvaluator(queries, [0, 1])
    with pytest.raises(ValueError, match="a block's labels came without the queries'"):
        by_lists.find_positives(GALLERY, LABELS)
    with pytest.raises(ValueError, match="the queries' labels came without a block's"):
        by_labels.find_positives(GALLERY)
    for step in (by_lists.find_positives, by_lists.count_negatives):
        step(GALLERY[:8])
    with pytest.raises(ValueError, match="relevant lists item 9; expected indices below 8"):
        by_lists.result()


def test_crafted_positives_that_are_not_listed_are_refused() -> None:
    mine, theirs = (StreamingEvaluator(GALLERY[:2], relevant=(*PAIR, [1, 2])) for _ in range(2))
    theirs.find_positives(GALLERY)
    counts = theirs.partial_counts()
    for index in (4, 89, 2**40):
        crafted = replace(counts, indices=np.array([5, index], np.uint64))
        with pytest.raises(ValueError, match="positives that relevant doesn't list"):
            mine.merge(crafted)
    mine.merge(counts)

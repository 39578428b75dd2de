"""Verification in blocks, over machines and over ranks: the bits of one call."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from eval_support.peers import run_together
from eval_support.trial import trial
from hypothesis import given
from hypothesis import strategies as st
from test_verify_codes import assert_same

from dml_eval_rs import StreamingVerifier, verification_streaming, verify, verify_codes

FAR = (0.5, 0.1, 1e-2, 1e-3)
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 9, 160)
ROWS = {
    "distinct": RNG.normal(size=(9, 6))[LABELS] + 1.5 * RNG.normal(size=(160, 6)),
    "ties": RNG.integers(-1, 2, (160, 6)) + 0.0,
    "twins": RNG.normal(size=(9, 6))[LABELS],
}
ROWS["ties"][:, 0] = 1
GROUPS = RNG.integers(0, 3, 160)


def stream(verifier: StreamingVerifier, rows: np.ndarray, edges: Any, groups: Any = None) -> int:
    """Add blocks until no pass is needed; each pass has other blocks. Return the number of passes."""
    passes = 0
    while verifier.begin_pass():
        for a, b in edges(passes):
            of_block = None if groups is None else groups[a:b]
            verifier.add_block(rows[a:b], LABELS[a:b], a, groups=of_block)
        passes += 1
        assert passes < 80
    return passes


@pytest.mark.parametrize("kind", ROWS)
@given(data=st.data())
def test_blocks_in_any_order_give_the_bits_of_one_call(kind: str, data: Any) -> None:
    similarity = data.draw(st.sampled_from(["cosine", "dot", "euclidean", "hamming"]))
    rows = ROWS[kind].astype(data.draw(st.sampled_from([np.float32, np.float64])))
    rows = np.packbits(rows > 0, axis=1) if similarity == "hamming" else rows
    metrics = data.draw(st.sampled_from([("tar", "eer", "auc"), ("tar",), ("auc",), ("eer",)]))
    groups = GROUPS if data.draw(st.booleans()) else None
    query_groups = None if groups is None else groups[:50]
    names: dict[str, Any] = {"far": FAR, "metrics": metrics}
    drawn = [[0, *sorted(data.draw(st.sets(st.integers(1, 159), max_size=5))), 160] for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        # So few scores that brackets are wrong, and take many passes to narrow.
        patch.setattr(verification_streaming, "_SAMPLE", data.draw(st.sampled_from([2, 200, 1 << 21])))
        patch.setattr(verification_streaming, "_KEPT", data.draw(st.sampled_from([100, 1000, 1 << 22])))
        verifier = StreamingVerifier(
            rows[:50], LABELS[:50], similarity=similarity, groups=query_groups, threads=1, **names
        )
        stream(verifier, rows, lambda passes: list(itertools.pairwise(drawn[passes % 2]))[::-1], groups)
    of_all = {"groups": query_groups, "gallery_groups": groups, **names}
    if similarity == "hamming":
        expected = verify_codes(rows[:50], LABELS[:50], rows, LABELS, **of_all)
    else:
        expected = verify(rows[:50], LABELS[:50], rows, LABELS, similarity=similarity, **of_all)
    assert_same(verifier.result(), expected)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("kept", [40, 1 << 22])
def test_machines_that_merge_after_each_pass_get_the_bits_of_one(
    kind: str, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification_streaming, "_SAMPLE", 300)
    monkeypatch.setattr(verification_streaming, "_KEPT", kept)
    rows = ROWS[kind].astype(np.float32)
    parts = [(0, 31), (31, 130), (130, 160)]
    machines = [StreamingVerifier(rows[:50], LABELS[:50], far=FAR, threads=1) for _ in parts]
    while True:
        (is_needed,) = {machine.begin_pass() for machine in machines}
        if not is_needed:
            break
        for machine, (a, b) in zip(machines, parts):
            machine.add_block(rows[a:b], LABELS[a:b], a)
        sent = [pickle.loads(pickle.dumps(machine.partial_pairs())) for machine in machines]
        for i, machine in enumerate(machines):
            for j in (1, 2):
                machine.merge(sent[(i + j) % 3])
    expected = verify(rows[:50], LABELS[:50], rows, LABELS, far=FAR)
    for machine in machines:
        assert_same(machine.result(), expected)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("sizes", [(None, None), (300, 400), (1, 1)])
def test_ranks_get_the_bits_of_one_process(kind: str, sizes: tuple[Any, Any]) -> None:
    """With small samples and lists, brackets are wrong and lists overflow on some ranks only."""
    rows = ROWS[kind].astype(np.float32)
    for similarity, gallery in (("cosine", False), ("dot", True)):
        arrays = (rows[:70], LABELS[:70], rows, LABELS) if gallery else (rows, LABELS)
        names: dict[str, Any] = {"similarity": similarity, "far": FAR, "threads": 1}
        expected = verify(*arrays, **names)
        with trial(verify_sample=sizes[0], verify_listed=sizes[1]):
            for world_size in (3,) if sizes == (1, 1) else (2, 5):
                for found in run_together(
                    world_size, lambda peer, a=arrays, n=names: verify(*a, **n, peers=peer)
                ):
                    assert_same(found, expected)


def test_ranks_with_other_arrays_are_an_error() -> None:
    rows = ROWS["distinct"]
    with pytest.raises(ValueError, match="other arrays or options than rank 0"):
        run_together(2, lambda peer: verify(rows + peer.rank, LABELS, peers=peer))
    with pytest.raises(ValueError, match="other arrays or options than rank 0"):
        run_together(2, lambda peer: verify(rows, LABELS, far=0.1 + peer.rank / 10, peers=peer))
    with pytest.raises(ValueError, match="peers came with pairs"):
        verify(rows, LABELS, pairs=[[0, 1]], peers=object())  # type: ignore[arg-type]


def test_a_rank_that_changes_numbers_is_an_error() -> None:
    rows = ROWS["distinct"].astype(np.float32)

    class Peer:
        rank, world_size = 0, 2

        def all_gather(self, numbers: np.ndarray) -> np.ndarray:
            return np.concatenate([numbers, numbers])

        def all_reduce(self, counts: np.ndarray) -> np.ndarray:
            return 2 * counts

    with pytest.raises(ValueError, match="all_gather returned"):
        verify(rows, LABELS, peers=Peer())


def test_a_verifier_asks_for_two_passes_of_ordinary_data_and_for_one_of_codes() -> None:
    rows = ROWS["distinct"].astype(np.float32)
    whole = lambda _: [(0, 160)]  # noqa: E731
    assert stream(StreamingVerifier(rows[:50], LABELS[:50]), rows, whole) == 2
    assert stream(StreamingVerifier(rows[:50], LABELS[:50], metrics="auc"), rows, whole) == 2
    codes = np.packbits(rows > 0, axis=1)
    assert stream(StreamingVerifier(codes[:50], LABELS[:50], similarity="hamming"), codes, whole) == 1


def test_wrong_blocks_and_passes_are_refused_and_change_nothing() -> None:
    rows = ROWS["distinct"].astype(np.float32)
    verifier = StreamingVerifier(rows[:50], LABELS[:50])
    with pytest.raises(ValueError, match="no pass has begun"):
        verifier.add_block(rows, LABELS)
    with pytest.raises(ValueError, match="the passes are not done"):
        verifier.result()
    assert verifier.begin_pass()
    with pytest.raises(ValueError, match="the first pass had no block"):
        verifier.begin_pass()
    verifier.add_block(rows[80:], LABELS[80:], 80)
    for message, block, labels, options in [
        ("items 80 to 159 were given before", rows[:100], LABELS[:100], {"first_index": 60}),
        ("block has shape", rows[:3, :2], LABELS[:3], {"first_index": 0}),
        ("labels has shape", rows[:3], LABELS[:2], {"first_index": 0}),
        ("a block's groups came without the queries'", rows[:3], LABELS[:3], {"groups": [0, 1, 1]}),
        ("first_index is -1", rows[:3], LABELS[:3], {"first_index": -1}),
        ("block row 1 holds NaN", rows[:3] + np.array([[0], [np.nan], [0]]), LABELS[:3], {"first_index": 0}),
    ]:
        with pytest.raises(ValueError, match=message):
            verifier.add_block(block, labels, **options)
    with pytest.raises(ValueError, match="items 0 to 79 of the gallery were never given"):
        verifier.begin_pass()
    verifier.add_block(rows[:80], LABELS[:80], 0)
    assert verifier.begin_pass()
    with pytest.raises(ValueError, match="items 100 to 259 were not in the first pass"):
        verifier.add_block(rows, LABELS, 100)
    verifier.add_block(rows[:80], LABELS[:80][::-1], 0)
    with pytest.raises(ValueError, match="80 of 160 items are counted in this pass"):
        verifier.begin_pass()
    verifier.add_block(rows[80:], LABELS[80:])
    with pytest.raises(ValueError, match="the labels of some of the items 0 to 159 differ"):
        verifier.begin_pass()
    alone = StreamingVerifier(rows[:50], LABELS[:50] + 100)
    assert alone.begin_pass()
    alone.add_block(rows, LABELS)
    with pytest.raises(ValueError, match="none of the 8000 pairs has equal labels"):
        alone.begin_pass()


def test_other_queries_options_or_passes_are_not_merged() -> None:
    rows = ROWS["distinct"].astype(np.float32)
    first = StreamingVerifier(rows[:50], LABELS[:50])
    with pytest.raises(TypeError, match="other is a int"):
        first.merge(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pass 0 and the other in pass 0; expected the same, from 1 on"):
        first.merge(StreamingVerifier(rows[:50], LABELS[:50]))
    first.begin_pass()
    for other in (
        StreamingVerifier(rows[1:51], LABELS[:50]),
        StreamingVerifier(rows[:50], LABELS[1:51]),
        StreamingVerifier(rows[:50], LABELS[:50], far=0.2),
        StreamingVerifier(rows[:50], LABELS[:50], groups=GROUPS[:50]),
        StreamingVerifier(rows[:50], LABELS[:50], similarity="dot"),
    ):
        with pytest.raises(ValueError, match="differ in queries, labels or options"):
            first.merge(other)
    second = StreamingVerifier(rows[:50], LABELS[:50])
    second.begin_pass()
    second.add_block(rows, LABELS)
    first.add_block(rows[:80], LABELS[:80])
    with pytest.raises(ValueError, match="items 0 to 79 were given before"):
        first.merge(second)
    second.begin_pass()
    with pytest.raises(ValueError, match="pass 1 and the other in pass 2"):
        first.merge(second)
    first.begin_pass()
    with pytest.raises(ValueError, match="holds the first pass of 80 items and the other of 160"):
        first.merge(second)

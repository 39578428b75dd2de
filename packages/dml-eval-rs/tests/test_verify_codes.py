"""Verification of codes: that of their bits as numbers, under minus the squared distance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from eval_support import verification_reference as reference
from eval_support.peers import run_together
from eval_support.trial import trial
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import Verification, _native, verify, verify_codes

KERNELS = _native.kernels()
FAR = (0.9, 0.5, 1 / 3, 0.3, 0.1, 1e-3)


def bits_of(codes: np.ndarray) -> np.ndarray:
    return np.unpackbits(codes, axis=1).astype(np.float32)


def assert_same(found: Verification, expected: Verification) -> None:
    assert found.to_dict() == expected.to_dict()
    assert (found.roc is None) == (expected.roc is None)
    if found.roc is not None and expected.roc is not None:
        for name in ("far", "tar", "threshold"):
            assert getattr(found.roc, name).tobytes() == getattr(expected.roc, name).tobytes()


@given(data=st.data())
def test_codes_are_measured_as_by_the_reference(data: Any) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    width, kinds = data.draw(st.sampled_from([1, 2, 5])), data.draw(st.integers(1, 3))

    def draw(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        spread = data.draw(st.sampled_from([2, 256]))
        codes = rng.integers(0, spread, (rows, width)).astype(np.uint8)
        return codes, rng.integers(0, kinds, rows), rng.integers(0, 2, rows)

    codes, labels, groups = draw(data.draw(st.integers(2, 12)))
    gallery, gallery_labels, gallery_groups = (
        draw(data.draw(st.integers(1, 12))) if data.draw(st.booleans()) else (None, None, None)
    )
    grouped = data.draw(st.booleans())
    names: dict[str, Any] = {"groups": groups, "gallery_groups": gallery_groups} if grouped else {}
    bits = None if gallery is None else bits_of(gallery)
    positives, negatives = reference.all_pairs(
        bits_of(codes),
        labels,
        bits,
        gallery_labels,
        names.get("groups"),
        names.get("gallery_groups"),
        "euclidean",
    )
    if not positives or not negatives:
        with pytest.raises(ValueError, match="expected at least one"):
            verify_codes(codes, labels, gallery, gallery_labels, **names)
        return
    for kernel in KERNELS:
        with trial(kernel=kernel):
            found = verify_codes(codes, labels, gallery, gallery_labels, far=FAR, **names)
        expected = {far: reference.tar_at(far, positives, negatives) for far in FAR}
        assert found.tar == {far: tar for far, (tar, _) in expected.items()}
        assert found.threshold == {far: threshold for far, (_, threshold) in expected.items()}
        assert (found.eer, found.eer_threshold) == reference.equal_error_rate(positives, negatives)
        assert found.auc == reference.area(positives, negatives)
        of_bits = verify(
            bits_of(codes), labels, bits, gallery_labels, far=FAR, similarity="euclidean", **names
        )
        assert_same(found, of_bits)


RNG = np.random.default_rng(3)
LABELS = RNG.integers(0, 900, 4700)
CODES = RNG.integers(0, 256, (900, 8), np.uint8)[LABELS] ^ (
    RNG.integers(0, 256, (3, 4700, 8), np.uint8).min(axis=0) & RNG.integers(0, 256, (4700, 8), np.uint8)
)


def test_several_tables_threads_and_peers_give_the_bits_of_one_call() -> None:
    expected = verify_codes(CODES, LABELS, threads=1)
    assert_same(expected, verify(bits_of(CODES), LABELS, similarity="euclidean"))
    assert_same(verify_codes(CODES, LABELS, threads=3), expected)
    for found in run_together(
        3, lambda peer: verify_codes(CODES, LABELS, threads=1, metrics=("tar", "auc"), peers=peer)
    ):
        assert found.tar == expected.tar
        assert found.auc == expected.auc
        assert found.eer is None
    for found in run_together(
        2, lambda peer: verify_codes(CODES[:50], LABELS[:50], CODES, LABELS, threads=1, peers=peer)
    ):
        assert_same(found, verify_codes(CODES[:50], LABELS[:50], CODES, LABELS))


def test_given_pairs_of_codes_with_folds_are_those_of_their_bits() -> None:
    i, j = np.triu_indices(60, 1)
    pairs, labels = np.stack([i, j], 1), LABELS[:60] % 9
    found = verify_codes(CODES[:60], labels, pairs=pairs, folds=10)
    expected = verify(bits_of(CODES[:60]), labels, pairs=pairs, folds=10, similarity="euclidean")
    assert_same(found, expected)
    assert found.accuracy == expected.accuracy is not None
    every = verify_codes(CODES[:60], labels)
    assert {**every.to_dict(), "accuracy": found.accuracy} == found.to_dict()


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (TypeError, "codes has dtype float32; expected uint8", {"codes": bits_of(CODES[:4])}),
        (ValueError, "codes has shape .0, 8.; expected", {"codes": CODES[:0], "labels": []}),
        (ValueError, "labels has shape .3,.; expected .4,. to match codes", {"labels": [0, 1, 1]}),
        (ValueError, "gallery_codes came without gallery_labels", {"gallery_codes": CODES[:3]}),
        (ValueError, "gallery_codes has shape .3, 4.", {"gallery_codes": CODES[:3, :4], "gallery_labels": LABELS[:3]}),
        (ValueError, "far holds 1.0; expected shares", {"far": 1}),
        (ValueError, "folds came without pairs", {"folds": 2}),
        (ValueError, "all 6 pairs have equal labels", {"labels": [1, 1, 1, 1]}),
        (ValueError, "none of the 6 pairs has equal labels", {"labels": [1, 2, 3, 4]}),
        (ValueError, "pair 0 is .0, 4.; expected indices below 4", {"pairs": [[0, 4]]}),
        (ValueError, "gallery_groups came without gallery_codes", {"gallery_groups": [0, 0, 0, 1]}),
        (ValueError, "peers came with pairs", {"pairs": [[0, 1], [0, 2]], "peers": object()}),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(error: type[Exception], message: str, options: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"codes": CODES[:4], "labels": [0, 0, 1, 1], **options}
    with pytest.raises(error, match=message):
        verify_codes(**arguments)

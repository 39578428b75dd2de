"""Threads: none outlives a call of any public function or method, so a forked child can call it, too."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml_eval_rs
from dml_eval_rs import (
    StreamingEvaluator,
    StreamingVerifier,
    __main__,
    ami,
    ari,
    binarize,
    concatenate_blocks,
    evaluate,
    evaluate_codes,
    evaluate_levels,
    evaluate_shards,
    evaluate_ties,
    hard_negatives,
    index_recall,
    kmeans,
    knn,
    knn_codes,
    knn_shards,
    nmi,
    open_set,
    range_search,
    relevance_from_labels,
    verify,
    verify_codes,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(500, 16)).astype(np.float32)
LABELS = np.arange(500) % 50
CODES = np.packbits(X > 0, axis=1)
OWN: Any = {"threads": 1, "indices": np.arange(500)}


def found(similarity: Any = "cosine") -> StreamingEvaluator:
    """Return an evaluator whose positives are found."""
    items = CODES if similarity == "hamming" else X
    evaluator = StreamingEvaluator(items, LABELS, similarity=similarity, **OWN)
    evaluator.find_positives(items, LABELS)
    return evaluator


def counted(similarity: Any = "cosine") -> StreamingEvaluator:
    """Return an evaluator whose counts are complete."""
    evaluator = found(similarity)
    evaluator.count_negatives(CODES if similarity == "hamming" else X, LABELS)
    return evaluator


def half() -> StreamingEvaluator:
    """Return an evaluator that found the positives of the first half of the gallery."""
    evaluator = StreamingEvaluator(X, LABELS, **OWN)
    evaluator.find_positives(X[:250], LABELS[:250])
    return evaluator


def other_half() -> StreamingEvaluator:
    evaluator = StreamingEvaluator(X, LABELS, **OWN)
    evaluator.find_positives(X[250:], LABELS[250:], 250)
    return evaluator


def in_pass(passes: int) -> StreamingVerifier:
    """Return a verifier after so many passes, at the begin of the next one, if one is needed."""
    verifier = StreamingVerifier(X, LABELS, far=0.1)
    while verifier.begin_pass() and passes > 0:
        verifier.add_block(X, LABELS)
        passes -= 1
    return verifier


def filled(passes: int) -> StreamingVerifier:
    """Return a verifier after so many passes, at the end of the next one."""
    verifier = in_pass(passes)
    verifier.add_block(X, LABELS)
    return verifier


MEASURED = evaluate(X, LABELS, threads=1)

# By name: what a call needs, which is made beforehand, and the call.
CALLS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "evaluate": (lambda: None, lambda _: evaluate(X, LABELS)),
    "evaluate with a gallery and nmi": (lambda: None, lambda _: evaluate(X, LABELS, X, LABELS, nmi=True)),
    "evaluate_codes": (lambda: None, lambda _: evaluate_codes(CODES, LABELS)),
    "binarize": (lambda: None, lambda _: binarize(X)),
    "evaluate with lists": (
        lambda: relevance_from_labels([{label} for label in LABELS.tolist()]),
        lambda lists: evaluate(X, relevant=lists, average_precision=True, ndcg_at=10),
    ),
    "evaluate_levels": (
        lambda: None,
        lambda _: evaluate_levels(X, {"class": LABELS, "superclass": LABELS // 5}),
    ),
    "evaluate_ties": (lambda: None, lambda _: evaluate_ties(X, LABELS)),
    "relevance_from_labels": (
        lambda: None,
        lambda _: relevance_from_labels([{label} for label in LABELS.tolist()]),
    ),
    "evaluate_shards": (lambda: None, lambda _: evaluate_shards([X[:200], X[200:]], LABELS)),
    "knn_shards": (lambda: None, lambda _: knn_shards([X[:200]], [X[:200], X[200:]], 5)),
    "knn": (lambda: None, lambda _: knn(X, X, 5)),
    "knn_codes": (lambda: None, lambda _: knn_codes(CODES, CODES, 5)),
    "verify": (lambda: None, lambda _: verify(X, LABELS)),
    "verify of pairs": (lambda: None, lambda _: verify(X, LABELS, pairs=[[0, 50], [0, 1]])),
    "verify_codes": (lambda: None, lambda _: verify_codes(CODES, LABELS)),
    "StreamingVerifier": (lambda: None, lambda _: StreamingVerifier(X, LABELS)),
    "StreamingVerifier.begin_pass": (lambda: filled(0), lambda v: v.begin_pass()),
    "StreamingVerifier.begin_pass again": (lambda: filled(1), lambda v: v.begin_pass()),
    "StreamingVerifier.add_block": (lambda: in_pass(0), lambda v: v.add_block(X, LABELS)),
    "StreamingVerifier.add_block again": (lambda: in_pass(1), lambda v: v.add_block(X, LABELS)),
    "StreamingVerifier.partial_pairs": (lambda: in_pass(1), lambda v: v.partial_pairs()),
    "StreamingVerifier.merge": (lambda: (in_pass(0), in_pass(0)), lambda pair: pair[0].merge(pair[1])),
    "StreamingVerifier.result": (lambda: in_pass(9), lambda v: v.result()),
    "Verification.to_dict": (lambda: verify(X, LABELS), lambda found: found.to_dict()),
    "open_set": (lambda: None, lambda _: open_set(X, [*LABELS[1:], 999])),
    "OpenSet.to_dict": (lambda: open_set(X, [*LABELS[1:], 999]), lambda found: found.to_dict()),
    "range_search": (lambda: None, lambda _: range_search(X, X, 0.5)),
    "index_recall": (lambda: knn(X, X, 5)[1], lambda found: index_recall(found, X, X, 5)),
    "hard_negatives": (lambda: None, lambda _: hard_negatives(X, LABELS, 3)),
    "concatenate_blocks": (
        lambda: None,
        lambda _: concatenate_blocks([(X[:200], LABELS[:200]), (X[200:], LABELS[200:])]),
    ),
    "kmeans": (lambda: None, lambda _: kmeans(X, 9)),
    "nmi": (lambda: None, lambda _: nmi(LABELS, LABELS // 3)),
    "ami": (lambda: None, lambda _: ami(LABELS, LABELS // 3)),
    "ari": (lambda: None, lambda _: ari(LABELS, LABELS // 3)),
    "StreamingEvaluator": (lambda: None, lambda _: StreamingEvaluator(X, LABELS, **OWN)),
    "StreamingEvaluator.find_positives": (half, lambda e: e.find_positives(X[250:], LABELS[250:])),
    "StreamingEvaluator.count_negatives": (found, lambda e: e.count_negatives(X, LABELS)),
    "StreamingEvaluator.count_negatives of codes": (
        lambda: found("hamming"),
        lambda e: e.count_negatives(CODES, LABELS),
    ),
    "StreamingEvaluator.partial_counts": (counted, lambda e: e.partial_counts()),
    "StreamingEvaluator.merge": (lambda: (half(), other_half()), lambda pair: pair[0].merge(pair[1])),
    "StreamingEvaluator.merge of PartialCounts": (
        lambda: (half(), other_half().partial_counts()),
        lambda pair: pair[0].merge(pair[1]),
    ),
    "StreamingEvaluator.result": (counted, lambda e: e.result()),
    "StreamingEvaluator.result of codes": (lambda: counted("hamming"), lambda e: e.result()),
    "Evaluation.confidence_interval": (lambda: None, lambda _: MEASURED.confidence_interval("map_at_r")),
    "Evaluation.compare": (lambda: None, lambda _: MEASURED.compare(MEASURED, "map_at_r")),
    "Evaluation.per_class": (lambda: None, lambda _: MEASURED.per_class("map_at_r", LABELS)),
    "Evaluation.rows": (lambda: None, lambda _: MEASURED.rows()),
    "Evaluation.plot": (lambda: None, lambda _: MEASURED.plot()),
    "Verification.rows": (lambda: verify(X, LABELS), lambda found: found.rows()),
    "Verification.plot": (lambda: verify(X, LABELS), lambda found: found.plot()),
    "OpenSet.rows": (lambda: open_set(X, [*LABELS[1:], 999]), lambda found: found.rows()),
    "IndexRecall.rows": (lambda: index_recall(knn(X, X, 5)[1], X, X, 5), lambda measured: measured.rows()),
    "IndexRecall.to_dict": (
        lambda: index_recall(knn(X, X, 5)[1], X, X, 5),
        lambda measured: measured.to_dict(),
    ),
    "IndexRecall.confidence_interval": (
        lambda: index_recall(knn(X, X, 5)[1], X, X, 5),
        lambda measured: measured.confidence_interval(),
    ),
    "Evaluation.to_dict": (lambda: None, lambda _: MEASURED.to_dict()),
    "Evaluation.from_dict": (
        lambda: None,
        lambda _: dml_eval_rs.Evaluation.from_dict(MEASURED.to_dict(), MEASURED.per_query),
    ),
}


def test_every_public_function_and_method_is_tried() -> None:
    records = {
        "Comparison",
        "Interval",
        "KMeans",
        "PartialCounts",
        "PartialPairs",
        "Peers",
        "Roc",
    }  # fields, and no method that computes
    methods = {
        f"{owner.__name__}.{name}"
        for owner in (
            dml_eval_rs.Evaluation,
            dml_eval_rs.IndexRecall,
            dml_eval_rs.OpenSet,
            dml_eval_rs.Verification,
            StreamingEvaluator,
            StreamingVerifier,
        )
        for name, value in vars(owner).items()
        if callable(value) or isinstance(value, classmethod)
        if not name.startswith("_")
    }
    public = (
        {*dml_eval_rs.__all__, *methods} - records - {"Evaluation", "IndexRecall", "OpenSet", "Verification"}
    )
    assert public <= set(CALLS), public - set(CALLS)


def threads() -> set[str]:
    """Return the ids of this process's threads."""
    return {path.name for path in Path("/proc/self/task").iterdir()}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("name", CALLS)
def test_no_thread_outlives_a_call(name: str) -> None:
    prepare, call = CALLS[name]
    before = threads()
    call(prepare())
    # A thread that was joined leaves the kernel's list a moment later.
    deadline = time.monotonic() + 10
    while (left := threads() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


def assert_a_forked_child_ends(call: Callable[[], object]) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            call()
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert status == 0
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_forked_child_can_make_the_same_call(name: str) -> None:
    prepare, call = CALLS[name]
    call(prepare())
    assert_a_forked_child_ends(lambda: call(prepare()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_can_run_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tmp_path / "x.npy"), str(tmp_path / "labels.npy")]
    for path, array in zip(arguments, (X, LABELS)):
        np.save(path, array)
    before = threads() if sys.platform.startswith("linux") else set()
    assert __main__.main(arguments) == 0
    assert "MAP@R" in capsys.readouterr().out
    assert_a_forked_child_ends(lambda: __main__.main(arguments))
    assert not sys.platform.startswith("linux") or threads() <= before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("variable", "argument", "expected"), [("3", None, 3), ("3", 2, 2), ("0", 4, 4)])
def test_the_argument_overrules_the_variable_that_sets_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, variable: str, argument: int | None, expected: int
) -> None:
    monkeypatch.setenv("RAYON_NUM_THREADS", variable)
    x = RNG.normal(size=(6000, 64)).astype(np.float32)
    before, seen = threads(), {0}
    kmeans(x, 600, threads=argument, progress=lambda *_: seen.add(len(threads() - before)))
    assert max(seen) == expected + 1  # and one that waits for them

"""Threads end before public functions and methods return, so that a forked child can also call these."""

from __future__ import annotations

import inspect
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
    Labels,
    Relevance,
    __main__,
    ami,
    ari,
    binarize,
    compare,
    concatenate_blocks,
    evaluate,
    evaluate_levels,
    evaluate_shards,
    evaluate_ties,
    hard_negatives,
    index_recall,
    kmeans,
    knn,
    knn_shards,
    nmi,
    open_set,
    range_search,
    relevance_from_labels,
    verify,
    verify_shards,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(500, 16)).astype(np.float32)
LABELS = np.arange(500) % 50
CODES = np.packbits(X > 0, axis=1)
CODE: Any = {"similarity": "hamming"}
PARTS = [X[:200], X[200:]]
SETS = [{label} for label in LABELS.tolist()]
ALONE = [*LABELS[1:], 999]  # one query is unknown

MEASURED = evaluate(X, LABELS, threads=1)

VERIFIED = verify(X, LABELS, threads=1)
OPENED = open_set(X, ALONE, threads=1)
FOUND = knn(X, X, 5, threads=1)[1]
RECALLED = index_recall(FOUND, X, X, 5, threads=1)
COMPARED = compare({"a": MEASURED, "b": MEASURED})
METRICS = ["map", "ndcg@10", "nmi"]

CALLS: dict[str, Callable[[], object]] = {
    "Labels": lambda: Labels(LABELS, LABELS % 3, junk=1, distractors=2),
    "Relevance": lambda: Relevance([0, 2, 2], [3, 1], [2, 1]),
    "ami": lambda: ami(LABELS, LABELS // 3),
    "ari": lambda: ari(LABELS, LABELS // 3),
    "binarize": lambda: binarize(X),
    "compare": lambda: compare({"a": MEASURED, "b": MEASURED}),
    "concatenate_blocks": lambda: concatenate_blocks([(X[:200], LABELS[:200]), (X[200:], LABELS[200:])]),
    "evaluate": lambda: evaluate(X, LABELS),
    "evaluate with a gallery and clusters": lambda: evaluate(X, LABELS, X, LABELS, metrics=METRICS),
    "evaluate of codes": lambda: evaluate(CODES, LABELS, metrics=METRICS, **CODE),
    "evaluate with lists": lambda: evaluate(X, relevance_from_labels(SETS), metrics=METRICS[:2]),
    "evaluate with groups and junk": lambda: evaluate(X, Labels(LABELS, np.arange(500), junk=3)),
    "evaluate_levels": lambda: evaluate_levels(X, {"class": LABELS, "superclass": LABELS // 5}),
    "evaluate_shards": lambda: evaluate_shards(PARTS, LABELS),
    "evaluate_ties": lambda: evaluate_ties(X, LABELS),
    "hard_negatives": lambda: hard_negatives(X, LABELS, 3, below="hardest"),
    "hard_negatives of codes": lambda: hard_negatives(CODES, LABELS, 3, **CODE),
    "index_recall": lambda: index_recall(FOUND, X, X, 5),
    "index_recall of codes": lambda: index_recall(FOUND, CODES, CODES, 5, **CODE),
    "kmeans": lambda: kmeans(X, 9),
    "knn": lambda: knn(X, X, 5),
    "knn of codes": lambda: knn(CODES, CODES, 5, **CODE),
    "knn_shards": lambda: knn_shards(PARTS[:1], PARTS, 5),
    "nmi": lambda: nmi(LABELS, LABELS // 3),
    "open_set": lambda: open_set(X, ALONE),
    "open_set of codes": lambda: open_set(CODES, ALONE, **CODE),
    "range_search": lambda: range_search(X, X, 0.5),
    "range_search of codes": lambda: range_search(CODES, None, 5, **CODE),
    "relevance_from_labels": lambda: relevance_from_labels(SETS),
    "verify": lambda: verify(X, LABELS),
    "verify of pairs": lambda: verify(X, LABELS, pairs=[[0, 50], [0, 1]]),
    "verify of codes": lambda: verify(CODES, LABELS, **CODE),
    "verify_shards": lambda: verify_shards(PARTS, LABELS),
    "Evaluation.compare": lambda: MEASURED.compare(MEASURED, "map@r"),
    "Evaluation.confidence_interval": lambda: MEASURED.confidence_interval("map@r", by=LABELS),
    "Evaluation.from_dict": lambda: type(MEASURED).from_dict(MEASURED.to_dict(), MEASURED.per_query),
    "Evaluation.per_class": lambda: MEASURED.per_class("map@r", LABELS),
    "Evaluation.plot": MEASURED.plot,
    "IndexRecall.confidence_interval": RECALLED.confidence_interval,
    "Verification.compare": lambda: VERIFIED.compare(VERIFIED, "eer"),
    "Verification.confidence_interval": lambda: VERIFIED.confidence_interval("eer"),
    "Verification.plot": VERIFIED.plot,
}
# These methods convert a result to a different form.
FORMS = ("table", "precise", "to_csv", "to_dict", "to_latex", "to_markdown")
for _result in (MEASURED, VERIFIED, OPENED, RECALLED, COMPARED):
    for _form in FORMS:
        if hasattr(_result, _form):
            CALLS[f"{type(_result).__name__}.{_form}"] = getattr(_result, _form)


def test_every_public_function_and_method_is_tried() -> None:
    results = {type(result) for result in (MEASURED, VERIFIED, OPENED, RECALLED, COMPARED)}
    methods = {
        f"{owner.__name__}.{name}"
        for owner in results
        for name, value in vars(owner).items()
        if (inspect.isfunction(value) or isinstance(value, classmethod)) and not name.startswith("_")
    }
    functions = {name for name in dml_eval_rs.__all__ if inspect.isfunction(getattr(dml_eval_rs, name))}
    untried = {*functions, *methods, "Labels", "Relevance"} - set(CALLS)
    assert not untried


def threads() -> set[str]:
    """Return the ids of this process's threads; empty if the system is not Linux."""
    tasks = Path("/proc/self/task")
    return {path.name for path in tasks.iterdir()} if tasks.exists() else set()


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
def test_no_thread_outlives_a_call_so_a_forked_child_can_make_it_too(name: str) -> None:
    before = threads()
    CALLS[name]()
    # After a thread is joined, it stays in the kernel's list for a moment.
    deadline = time.monotonic() + 10
    while (left := threads() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left
    assert_a_forked_child_ends(CALLS[name])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_can_run_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tmp_path / "x.npy"), str(tmp_path / "labels.npy")]
    for path, array in zip(arguments, (X, LABELS)):
        np.save(path, array)
    before = threads()
    assert __main__.main(arguments) == 0
    assert "MAP@R" in capsys.readouterr().out
    assert_a_forked_child_ends(lambda: __main__.main(arguments))
    assert threads() <= before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("variable", "argument", "expected"), [("3", None, 3), ("3", 2, 2), ("0", 4, 4)])
def test_the_argument_overrules_the_variable_that_sets_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, variable: str, argument: int | None, expected: int
) -> None:
    monkeypatch.setenv("RAYON_NUM_THREADS", variable)
    x = RNG.normal(size=(6000, 64)).astype(np.float32)
    before, seen = threads(), {0}
    kmeans(x, 600, threads=argument, progress=lambda *_: seen.add(len(threads() - before)))
    assert max(seen) == expected + 1  # plus a thread that waits

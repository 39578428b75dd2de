"""Threads must end before public functions or methods return, so that a forked child can also call
these.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from eval_support.every_function import calls_of

import dml_eval_rs
from dml_eval_rs import __main__, compare, evaluate, index_recall, kmeans, knn, open_set, verify

RNG = np.random.default_rng(0)
X = RNG.normal(size=(500, 16)).astype(np.float32)
LABELS = np.arange(500) % 50
CODES = np.packbits(X > 0, axis=1)

MEASURED = evaluate(X, LABELS, threads=1)
VERIFIED = verify(X, LABELS, threads=1)
OPENED = open_set(X, [*LABELS[1:], 999], threads=1)  # a query is unknown
RECALLED = index_recall(knn(X, X, 5, threads=1)[1], X, X, 5, threads=1)
COMPARED = compare({"a": MEASURED, "b": MEASURED})

CALLS: dict[str, Callable[[], object]] = {
    **calls_of(X, CODES, LABELS, X, CODES, LABELS),
    "Evaluation.compare": lambda: MEASURED.compare(MEASURED, "map@r"),
    "Evaluation.confidence_interval": lambda: MEASURED.confidence_interval("map@r", by=LABELS),
    "Evaluation.from_dict": lambda: type(MEASURED).from_dict(
        MEASURED.to_dict(), MEASURED.per_query
    ),
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
        if (inspect.isfunction(value) or isinstance(value, classmethod))
        and not name.startswith("_")
    }
    functions = {
        name for name in dml_eval_rs.__all__ if inspect.isfunction(getattr(dml_eval_rs, name))
    }
    # load_array maps files, so it doesn't start threads.
    untried = {*functions, *methods, "Labels", "Relevance"} - set(CALLS) - {"load_array"}
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
    np.ones((500, 500)) @ np.ones((500, 500))  # starts the threads of BLAS, which a fork has ended
    before = threads()
    CALLS[name]()
    # After a thread is joined, it stays in the kernel's list for a moment.
    deadline = time.monotonic() + 10
    while (left := threads() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left, [Path(f"/proc/self/task/{thread}/stat").read_text() for thread in left]
    assert_a_forked_child_ends(CALLS[name])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_can_run_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path / "x.npy"), str(tmp_path / "labels.npy")]
    for path, array in zip(arguments, (X, LABELS)):
        np.save(path, array)
    before = threads()
    assert __main__.main(arguments) == 0
    assert "MAP@R" in capsys.readouterr().out
    assert_a_forked_child_ends(lambda: __main__.main(arguments))
    assert threads() <= before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("variable", "argument", "expected"), [("3", None, 3), ("3", 2, 2), ("0", 4, 4)]
)
def test_the_argument_overrules_the_variable_that_sets_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, variable: str, argument: int | None, expected: int
) -> None:
    monkeypatch.setenv("RAYON_NUM_THREADS", variable)
    x = RNG.normal(size=(6000, 64)).astype(np.float32)
    before, seen = threads(), {0}
    kmeans(x, 600, threads=argument, progress=lambda *_: seen.add(len(threads() - before)))
    assert max(seen) == expected + 1  # plus a thread that waits

"""The command `dml-eval`: measured and printed values, the version, and files that numpy can't
read.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_eval_rs import Labels, binarize, compare, evaluate, verify
from dml_eval_rs.__main__ import main

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
LABELS = np.array([0, 0, 1, 1, 2, 2])
ARRAYS = {
    "x": X,
    "worse": X + np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32),
    "codes": binarize(X),
    "labels": LABELS,
    "text": np.array(["a", "a", "b", "b", "c", "c"]),
    "groups": np.array([0, 0, 0, 1, 0, 1]),
}
Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Save the arrays in a folder; return a function that runs the command in this folder and
    returns the output.
    """
    for name, array in ARRAYS.items():
        np.save(tmp_path / f"{name}.npy", array)
    monkeypatch.chdir(tmp_path)

    def run(*words: str, code: int = 0) -> str:
        assert main(words) == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    return run


def test_it_prints_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert not exit_.value.code
    assert capsys.readouterr().out == f"dml-eval {version('dml-eval-rs')}\n"


def test_it_measures_what_evaluate_does(run: Run) -> None:
    names = ["map@2", "recall@3", "ndcg@2", "nmi_min", "minp"]
    given = [word for name in names for word in ("--metric", name)]
    printed = json.loads(run("x.npy", *given, "labels.npy", "--format", "json", "--seed", "3"))
    assert printed == evaluate(X, LABELS, metrics=names, seed=3).to_dict()
    assert list(printed)[:5] == names
    more = ["--groups", "groups.npy", "--unmatched", "zero", "--ties", "expected"]
    more += ["--similarity", "dot", "--threads", "1"]
    expected = evaluate(
        X, Labels(LABELS, ARRAYS["groups"]), unmatched="zero", ties="expected", similarity="dot"
    )
    assert expected.n_unmatched == 2
    assert json.loads(run("x.npy", "labels.npy", *more, "--format", "json")) == expected.to_dict()


def test_galleries_have_labels_groups_junk_and_distractors(run: Run) -> None:
    gallery = ["--gallery", "worse.npy", "labels.npy"]
    expected = evaluate(X, LABELS, ARRAYS["worse"], Labels(LABELS, junk=1, distractors=[2]))
    given = ["x.npy", "labels.npy", "--junk", "1", "--distractors", "2", "--format", "json"]
    assert json.loads(run(*given, *gallery)) == expected.to_dict()
    own = evaluate(X, Labels(LABELS, junk=1, distractors=[2]))
    assert json.loads(run(*given)) == own.to_dict()
    text = evaluate(X, Labels(ARRAYS["text"], junk=["a"]))
    assert json.loads(run("x.npy", "text.npy", "--junk", "a", "--format", "json")) == text.to_dict()
    groups = ["--groups", "groups.npy", "--gallery-groups", "groups.npy"]
    both = evaluate(
        X, Labels(LABELS, ARRAYS["groups"]), ARRAYS["worse"], Labels(LABELS, ARRAYS["groups"])
    )
    assert (
        json.loads(run("x.npy", "labels.npy", *gallery, *groups, "--format", "json"))
        == both.to_dict()
    )
    assert "have groups, but" in run("x.npy", "labels.npy", *gallery, *groups[2:], code=2)
    assert "--gallery-groups is given without --gallery" in run(
        "x.npy", "labels.npy", *groups[2:], code=2
    )


def test_codes_need_their_similarity(run: Run) -> None:
    expected = evaluate(ARRAYS["codes"], LABELS, similarity="hamming", metrics=["ndcg@3", "nmi"])
    given = ["codes.npy", "labels.npy", "--metric", "ndcg@3", "--metric", "nmi", "--format", "json"]
    assert json.loads(run(*given, "--similarity", "hamming")) == expected.to_dict()
    assert "embeddings has dtype uint8, but no similarity is given" in run(*given, code=2)
    assert "similarity='hamming' expects uint8" in run(
        "x.npy", "labels.npy", "--similarity", "hamming", code=2
    )


def test_true_accept_rates_are_measured_beside_the_others(run: Run) -> None:
    given = ["--metric", "tar@far=0.2", "--metric", "map@r", "--metric", "tar@far=1e-1"]
    printed = json.loads(run("x.npy", "labels.npy", *given, "--format", "json"))
    rates = verify(X, LABELS, metrics=("tar@far=0.2", "tar@far=1e-1"))
    assert list(printed)[:3] == ["tar@far=0.2", "map@r", "tar@far=1e-1"]
    assert printed["tar@far=1e-1"] == rates["tar@far=1e-1"]
    assert printed["map@r"] == evaluate(X, LABELS)["map@r"]
    assert set(printed) == {
        "tar@far=0.2",
        "map@r",
        "tar@far=1e-1",
        "n_queries",
        "n_unmatched",
        "n_gallery",
    }


@pytest.mark.parametrize(
    ("form", "method"),
    [("table", "__str__"), ("markdown", "to_markdown"), ("latex", "to_latex"), ("csv", "to_csv")],
)
def test_it_prints_the_result_in_each_form(run: Run, form: str, method: str) -> None:
    expected = getattr(evaluate(X, LABELS), method)()
    assert run("x.npy", "labels.npy", "--format", form) == expected.removesuffix("\n") + "\n"
    assert run("x.npy", "labels.npy") == f"{evaluate(X, LABELS)}\n"


@pytest.mark.parametrize("form", ["table", "markdown", "latex", "csv", "json"])
def test_it_compares_two_models(run: Run, form: str) -> None:
    given = [
        "x.npy",
        "labels.npy",
        "--compare",
        "worse.npy",
        "--metric",
        "map@r",
        "--metric",
        "recall@2",
    ]
    metrics = ["map@r", "recall@2"]
    table = compare(
        {f"{name}.npy": evaluate(ARRAYS[name], LABELS, metrics=metrics) for name in ("x", "worse")}
    )
    printed = run(*given, "--format", form)
    if form == "json":
        assert json.loads(printed) == table.to_dict()
    elif form == "csv":
        assert list(csv.reader(io.StringIO(printed))) == list(
            csv.reader(io.StringIO(table.to_csv()))
        )
    else:
        assert printed == f"{table if form == 'table' else getattr(table, f'to_{form}')()}\n"


def test_an_unknown_metric_and_bad_files_are_named(run: Run) -> None:
    assert "did you mean 'recall@1'?" in run("x.npy", "labels.npy", "--metric", "recal@1", code=2)
    expected = "dml-eval: the file no.npy doesn't exist; expected a .npy file\n"
    assert run("x.npy", "no.npy", code=2) == expected
    np.save("objects.npy", np.array(["cat", None], object), allow_pickle=True)
    message = run("x.npy", "objects.npy", code=2)
    assert "objects.npy contains Python objects; expected numbers or strings" in message
    assert "allow_pickle" not in message
    Path("truncated.npy").write_bytes(Path("x.npy").read_bytes()[:-8])
    np.savez("archive.npz", x=X)
    for name in ("truncated.npy", "archive.npz"):
        assert name in run(name, "labels.npy", code=2)


def test_progress_is_shown_on_a_terminal_only(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_terminal, end in ((False, ""), (True, "\r    \r")):
        monkeypatch.setattr(sys.stderr, "isatty", lambda is_terminal=is_terminal: is_terminal)
        assert main(["x.npy", "labels.npy"]) == 0
        shown = capsys.readouterr()
        assert shown.out == f"{evaluate(X, LABELS)}\n"
        assert shown.err.endswith(end)
        assert bool(shown.err) == is_terminal


def test_the_remedy_for_a_text_file_works(run: Run) -> None:
    Path("labels.txt").write_text("cat\ncat\ndog\ndog\nowl\nowl\n")
    message, _, remedy = (
        run("x.npy", "labels.txt", code=2).strip().partition("one label per line, use ")
    )
    assert (
        "labels.txt is not a .npy file; expected an array saved by numpy.save: for a text file"
        in message
    )
    exec(f"import numpy, pathlib; {remedy}")
    assert (
        json.loads(run("x.npy", "labels.npy", "--format", "json")) == evaluate(X, LABELS).to_dict()
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"}", b" "), (b"<f4", b"<04"), (b" 'f", b"b'f"), (b"(6", b"(-"), (b"descr", b"d\0scr")],
    ids=["bracket", "dtype", "key", "shape", "nul"],
)
def test_a_damaged_header_is_named(run: Run, old: bytes, new: bytes) -> None:
    damaged = Path("damaged.npy")
    damaged.write_bytes(Path("x.npy").read_bytes().replace(old, new, 1))
    message = "damaged.npy is not an intact .npy file of numbers or strings: "
    assert message in run("damaged.npy", "labels.npy", code=2)

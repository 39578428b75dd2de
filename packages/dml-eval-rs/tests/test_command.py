"""The command `dml-eval`: its arguments in any order, its version, and files that aren't numpy's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import dml_eval_rs
from dml_eval_rs import binarize, evaluate, evaluate_codes
from dml_eval_rs.__main__ import main

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
LABELS = np.array([0, 0, 1, 1, 2, 2])


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "l.npy", LABELS)
    return str(tmp_path / "x.npy"), str(tmp_path / "l.npy")


def test_it_prints_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"dml-eval {dml_eval_rs.__version__}\n"


@pytest.mark.parametrize(
    "order",
    [
        lambda x, labels: ["--recall-at", "1", "3", x, labels, "--json"],
        lambda x, labels: [x, labels, "--json", "--recall-at", "1", "3"],
        lambda x, labels: [x, "--recall-at", "1", "3", "--json", labels],
        lambda x, labels: ["--recall-at=1,3", x, labels, "--json"],
        lambda x, labels: ["--recall-at", "1,3", x, labels, "--json"],
    ],
    ids=["first", "last", "between", "comma", "comma-apart"],
)
def test_recall_at_takes_the_numbers_alone(files, order, capsys) -> None:  # type: ignore[no-untyped-def]
    assert main(order(*files)) == 0
    assert list(json.loads(capsys.readouterr().out)["recall"]) == ["1", "3"]


@pytest.mark.parametrize("given", [["--recall-at", "x"], ["--recall-at"], ["--recall-at", "1,"]])
def test_recall_at_refuses_what_is_no_number(files, given, capsys) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SystemExit, match="2"):
        main([*files, *given])
    assert "argument --recall-at" in capsys.readouterr().err


def test_it_measures_what_evaluate_does(files, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    groups = np.array([0, 0, 0, 1, 0, 1])
    np.save(tmp_path / "g.npy", groups)
    by_k = ["precision", "average-precision", "ndcg", "recall-share", "reciprocal-rank"]
    given = [word for name in by_k for word in (f"--{name}-at", "2", "3")]
    given += ["--average-precision", "--groups", str(tmp_path / "g.npy"), "--unmatched", "zero"]
    assert main([*given, *files, "--json"]) == 0
    options = {f"{name.replace('-', '_')}_at": (2, 3) for name in by_k}
    expected = evaluate(X, LABELS, **options, average_precision=True, groups=groups, unmatched="zero")
    assert json.loads(capsys.readouterr().out) == expected.to_dict()
    assert expected.n_unmatched == 2


def test_codes_have_the_same_metrics(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    np.save(tmp_path / "x.npy", binarize(X))
    np.save(tmp_path / "l.npy", LABELS)
    given = [str(tmp_path / "x.npy"), str(tmp_path / "l.npy"), "--ndcg-at", "3", "--json"]
    assert main([*given, "--gallery", *given[:2], "--gallery-groups", given[1]]) == 2
    assert "gallery_groups came without groups" in capsys.readouterr().err
    assert main(given) == 0
    assert json.loads(capsys.readouterr().out) == evaluate_codes(binarize(X), LABELS, ndcg_at=3).to_dict()


def test_a_missing_file_is_named(files, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    assert main([files[0], str(tmp_path / "no.npy")]) == 2
    assert (
        capsys.readouterr().err
        == f"dml-eval: the file {tmp_path / 'no.npy'} doesn't exist; expected a .npy file\n"
    )


def test_a_text_file_and_pickled_objects_are_named_with_the_remedy(files, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    text = tmp_path / "labels.txt"
    text.write_text("cat\ncat\ndog\ndog\nowl\nowl\n")
    assert main([files[0], str(text)]) == 2
    message = capsys.readouterr().err
    assert f"{text} is no .npy file; expected an array that numpy.save wrote: for a text file" in message
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array(["cat", None], object), allow_pickle=True)
    assert main([files[0], str(objects)]) == 2
    message += capsys.readouterr().err
    assert f"{objects} holds Python objects; expected numbers or strings" in message
    assert "allow_pickle" not in message


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"}", b" "), (b"<f4", b"<04"), (b" 'f", b"b'f"), (b"(6", b"(-"), (b"descr", b"d\0scr")],
    ids=["bracket", "dtype", "key", "shape", "nul"],
)
def test_a_damaged_header_is_named(files, tmp_path, capsys, old, new) -> None:  # type: ignore[no-untyped-def]
    damaged = tmp_path / "damaged.npy"
    np.save(damaged, np.ones((6, 4), np.float32))
    damaged.write_bytes(damaged.read_bytes().replace(old, new, 1))
    assert main([str(damaged), files[1]]) == 2
    assert f"{damaged} is not an intact .npy file of numbers or strings: " in capsys.readouterr().err


def test_the_remedy_for_a_text_file_works(files, tmp_path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    Path("labels.txt").write_text("cat\ncat\ndog\ndog\nowl\nowl\n")
    main([files[0], "labels.txt"])
    _, _, remedy = capsys.readouterr().err.strip().partition("a label a line, ")
    exec(f"import numpy, pathlib; {remedy}")
    assert main([files[0], "labels.npy", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured == dml_eval_rs.evaluate(X, LABELS).to_dict()

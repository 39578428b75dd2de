"""`dml-eval truth` and `dml-eval index`: the files that are written, and recall from searches and
from files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import index_recall, knn, load_array, range_search
from dml_eval_rs.__main__ import main
from dml_eval_rs.inputs.files import replacing, save_array
from dml_eval_rs.shards.ground_truth import choose_block, recall_from_truth

RNG = np.random.default_rng(0)
BASE = (RNG.integers(-2, 3, (200, 3)) + 0.5).astype(np.float32)  # many ties
QUERIES = (RNG.integers(-2, 3, (30, 3)) + 0.5).astype(np.float32)
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Save both sides in a new working directory; return a function that runs the command and
    returns the output.
    """
    monkeypatch.chdir(tmp_path)
    for name, array in (("base.fbin", BASE), ("queries.fvecs", QUERIES), ("base.npy", BASE)):
        save_array(Path(name), array)

    def run(*words: str, code: int = 0) -> str:
        assert main(words) == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    return run


def test_the_truth_has_the_same_bytes_for_all_blocks_and_threads(run: Run) -> None:
    similarities, indices = knn(QUERIES, BASE, 20)
    written = set()
    for base, memory, threads in (
        ("base.fbin", "66KB", "1"),
        ("base.npy", "80000", "2"),
        ("base.fbin", "1GB", "3"),
    ):
        given = (base, "queries.fvecs", "-k", "20", "--memory", memory, "--threads", threads)
        said = run("truth", *given, "--out", "truth.ibin", "--similarities", "truth.fbin")
        assert said == "truth.ibin: 20 neighbours for 30 queries in 200 (cosine)\n"
        written.add((Path("truth.ibin").read_bytes(), Path("truth.fbin").read_bytes()))
    assert len(written) == 1
    assert np.array_equal(load_array("truth.ibin"), indices)
    assert np.array_equal(load_array("truth.fbin"), similarities)
    run(
        "truth",
        "base.npy",
        "base.npy",
        "--exclude-self",
        "-k",
        "3",
        "--similarity",
        "dot",
        "--out",
        "own.ivecs",
    )
    assert np.array_equal(
        load_array("own.ivecs"), knn(BASE, None, 3, similarity="dot", exclude_self=True)[1]
    )


def test_only_allowed_items_are_written_and_measured(run: Run) -> None:
    allowed = np.arange(200) % 3 == 0
    np.save("allowed.npy", allowed)
    given = ("--allowed", "allowed.npy", "--memory", "66KB", "-k", "10")
    run("truth", "base.fbin", "queries.fvecs", *given, "--out", "truth.ivecs")
    assert np.array_equal(load_array("truth.ivecs"), knn(QUERIES, BASE, 10, allowed=allowed)[1])
    by_search = ("--base", "base.fbin", "--queries", "queries.fvecs", "--allowed", "allowed.npy")
    measured = json.loads(run("index", "truth.ivecs", *by_search, "--format", "json"))
    assert measured["index recall@10"] == 1


def test_a_file_of_ann_benchmarks_states_parts_and_similarity(run: Run) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py, of the extra hdf5, isn't installed")
    with h5py.File("data.hdf5", "w") as file:
        file["train"], file["test"], file.attrs["distance"] = BASE, QUERIES, "euclidean"
        file["neighbors"] = knn(QUERIES, BASE, 10, similarity="euclidean")[1]
    said = run("truth", "data.hdf5", "data.hdf5", "-k", "10", "--out", "truth.ibin")
    assert said == "truth.ibin: 10 neighbours for 30 queries in 200 (euclidean)\n"
    by_search = ("--base", "data.hdf5", "--queries", "data.hdf5")
    for compared in (by_search, ("--truth", "data.hdf5")):
        measured = json.loads(run("index", "truth.ibin", *compared, "--format", "json"))
        assert measured["index recall@10"] == 1
    found = json.loads(
        run("index", "data.hdf5", *by_search, "--similarity", "dot", "--format", "json")
    )
    assert found["index recall@10"] < 1


def test_ranges_are_written_as_lists(run: Run) -> None:
    run("truth", "base.fbin", "queries.fvecs", "--range", "0.9", "--out", "range.npz")
    with np.load("range.npz") as found:
        for name, expected in zip(found.files, range_search(QUERIES, BASE, 0.9)):
            assert np.array_equal(found[name], expected), name
    message = "x.ibin has the suffix '.ibin'; expected .npz"
    assert message in run(
        "truth", "base.fbin", "queries.fvecs", "--range", "0.9", "--out", "x.ibin", code=2
    )


def test_an_interrupted_call_leaves_no_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name for path in Path().iterdir()}

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("dml_eval_rs.__main__._show", interrupt)
    run("truth", "base.fbin", "queries.fvecs", "--out", "truth.ibin", code=130)
    assert {path.name for path in Path().iterdir()} == before
    content = Path("base.fbin").read_bytes()
    with pytest.raises(KeyboardInterrupt), replacing(Path("base.fbin")) as file:
        file.write(b"half") and interrupt()
    assert Path("base.fbin").read_bytes() == content
    assert {path.name for path in Path().iterdir()} == before


def test_an_index_is_measured_by_search_or_from_the_truth(run: Run) -> None:
    found = np.argsort(-(QUERIES @ BASE.T), axis=1, kind="stable")[:, ::-1][:, -60:][:, ::-1]
    found[:, 5] = -1
    save_array(Path("found.ivecs"), found)
    sides, form = ("base.fbin", "queries.fvecs"), ("--format", "json")
    stored = ("--truth", "truth.ibin", "--truth-similarities", "truth.fbin")
    run("truth", *sides, "-k", "60", "--out", "truth.ibin", "--similarities", "truth.fbin")
    by_search = run("index", "found.ivecs", "--base", sides[0], "--queries", sides[1], *form)
    measured = json.loads(by_search)
    for k in (1, 10):
        assert measured[f"index recall@{k}"] == index_recall(found, QUERIES, BASE, k).recall
    per_query = index_recall(found, QUERIES, BASE, 10).per_query
    worst = sorted(range(30), key=lambda query: (per_query[query], query))[:10]
    assert [*map(int, measured["worst_queries"])] == [
        query for query in worst if per_query[query] < 1
    ]
    assert run("index", "found.ivecs", *stored, *form) == by_search
    text = run("index", "found.ivecs", "--truth", "truth.ibin", "-k", "2")
    assert text.splitlines()[0].split() == ["recall", "95", "%", "interval"]


@given(st.data(), st.integers(1, 5), st.booleans())
def test_recall_from_truth_counts_found_neighbours(
    data: Any, k: int, has_similarities: bool
) -> None:
    found = [data.draw(st.permutations(range(-1, 8)).map(lambda ids: ids[:5])) for _ in range(3)]
    truth = [data.draw(st.permutations(range(8)).map(lambda ids: ids[:6])) for _ in range(3)]
    truth = [[*row[: (n := data.draw(st.integers(1, 6)))], *[-1] * (6 - n)] for row in truth]
    similarities = [
        sorted(data.draw(st.lists(st.integers(0, 2), min_size=6, max_size=6)))[::-1]
        for _ in range(3)
    ]
    expected = []
    for ids, nearest, of in zip(found, truth, similarities):
        right = {
            item
            for item, s in zip(nearest, of)
            if item >= 0 and has_similarities and s >= of[k - 1]
        }
        right |= {item for item in nearest[:k] if item >= 0}
        expected.append(len(right & set(ids[:k])) / sum(item >= 0 for item in nearest[:k]))
    given_similarities = np.array(similarities, np.float32) if has_similarities else None
    measured = recall_from_truth(np.array(found), np.array(truth), k, given_similarities)
    assert measured.per_query.tolist() == expected


@given(st.integers(1, 10**10), st.integers(1, 4096), st.integers(1, 10**4), st.integers(1, 200))
def test_blocks_fit_into_the_memory(memory: int, row: int, queries: int, k: int) -> None:
    results = queries * 100 * k
    if memory < results + min(2 * queries * row, 2 * row + 100 * k):
        with pytest.raises(ValueError, match=f"--memory is {memory:,} bytes; expected at least"):
            choose_block(memory, row, queries, k)
    else:
        block = choose_block(memory, row, queries, k)
        assert (block + min(block, queries)) * row + results <= memory


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("truth", "base.fbin", "queries.fvecs", "--out", "x.txt"),
            "x.txt has the suffix '.txt'; expected .npy, .fbin",
        ),
        (
            ("truth", "base.fbin", "queries.fvecs", "--out", "no/x.npy"),
            "the folder no doesn't exist",
        ),
        (
            ("truth", "base.fbin", "no.fbin", "--out", "x.npy"),
            "the file no.fbin doesn't exist; expected a .fbin file",
        ),
        (
            ("truth", "base.fbin", "queries.fvecs", "--out", "x.npy", "--memory", "9"),
            "--memory is 9 bytes; expected",
        ),
        (
            ("index", "base.npy", "--base", "base.npy"),
            "--base or --queries is missing; expected both, or --truth",
        ),
        (
            ("index", "base.npy", "--truth", "x", "--base", "x"),
            "--truth is given with an option of --base",
        ),
        (
            ("index", "base.npy", "--truth", "base.npy"),
            "found has dtype float32; expected integers",
        ),
    ],
)
def test_wrong_arguments_are_explained(run: Run, words: tuple[str, ...], message: str) -> None:
    assert message in run(*words, code=2)

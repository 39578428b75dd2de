"""The page that is used to compare runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from train_support.report_world import Page, check_page, finished_run, forget_test_split
from train_support.tiny_world import NAMES, make_registry

from dml_core import DmlError
from dml_train.measure.listing import Metric
from dml_train.report import side_by_side, write_side_by_side
from dml_train.report.finished import MetricDifference
from dml_train.report.side_by_side import Column, RunComparison
from dml_train.run_folder import RunFolder


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory) -> tuple[list[Path], Page]:
    """Return a pair of runs, and the page that compares the runs."""
    registry, folder = make_registry(), tmp_path_factory.mktemp("runs")
    runs = [
        finished_run(folder / name, registry, seed=seed)
        for seed, name in enumerate(["<i>one", "two"])
    ]
    return runs, Page(write_side_by_side(runs, folder / "page.html", registry))


@pytest.fixture
def runs(tmp_path, registry):
    return [
        finished_run(tmp_path / name, registry, seed=seed)
        for seed, name in enumerate(["<i>one", "two"])
    ]


@pytest.fixture
def page_of(tmp_path, registry):
    return lambda *runs: Page(write_side_by_side(runs, tmp_path / "page.html", registry))


def nearest(run):
    embeddings = np.load(run / "embeddings.npy")
    rows = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    similarity = rows @ rows.T
    np.fill_diagonal(similarity, -2)
    return np.argsort(-similarity, axis=1, kind="stable")[:, 0]


def test_the_page_is_safe_and_accessible_and_shows_different_settings_and_curves(unchanged):
    _, page = unchanged
    check_page(page)
    assert page.all("i") == []
    assert sum(name in page.text for name in NAMES) >= 2
    assert re.search(r"Key <i>one two training\.seed 0 1 Where they disagree", page.words)
    assert "loss: <i>one from 5 to 0.125; two from 5 to 0.125." in page.words


def test_metrics_tests_and_disagreements_are_those_of_a_plain_count(unchanged):
    runs, page = unchanged
    labels = np.load(runs[0] / "labels.npy")
    one, two = (labels[nearest(run)] == labels for run in runs)
    words = page.words
    difference = f"{two.mean() - one.mean():+.4f}".replace("-", "−")
    assert f"Recall@1 0.5000 0.5000 {difference} −0.5000 to +0.5000 0.0312" in words
    assert (
        f"right for both runs in {(one & two).sum()} queries, for neither in "
        f"{(~one & ~two).sum()}, only for “<i>one” in {(one & ~two).sum()} and only for “two” in "
        f"{(~one & two).sum()}."
    ) in words
    shown = min(6, (one & ~two).sum()) + min(6, (~one & two).sum())
    assert words.count("✓ right") == words.count("✗ wrong") == shown > 0


def test_only_a_value_that_a_paired_test_finds_better_is_bold(page_of, runs, monkeypatch):
    bold = re.compile(r'<th scope="row">([^<]+)</th>(?:(?!</tr>).)*<strong>', re.DOTALL)
    page = page_of(*runs)
    tested = re.findall(
        r'<th scope="row">([^<]+)</th><td>[^<]*</td><td>[^<]*</td>\s*<td>[+−]', page.source
    )
    assert tested
    assert bold.findall(page.source) == tested  # bold, since the p-value is 0.03
    assert "NMI" in page.words
    monkeypatch.setattr(side_by_side, "SIGNIFICANT", 0.01)
    assert bold.findall(page_of(*runs).source) == []


@pytest.mark.parametrize(
    ("differences", "winner"),
    [
        ([0.1], "b"),
        ([-0.1], "a"),
        ([-0.1, -0.2], "a"),
        ([0.1, -0.2], None),
        ([0.1, 0.2], None),
        ([-0.1, None], None),
    ],
)
def test_a_winner_was_tested_against_every_other_run(differences, winner):
    names = "abc"[: len(differences) + 1]
    metric = Metric("recall@1", 0.5)
    columns = [Column(name, None, {"recall@1": metric}) for name in names]
    tests = [
        None if d is None else SimpleNamespace(difference=d, p_value=0.01) for d in differences
    ]
    comparisons = [
        RunComparison(
            name, "", [MetricDifference(metric, 0.5 + test.difference, test)] if test else []
        )
        for name, test in zip(names[1:], tests, strict=True)
    ]
    assert side_by_side._winners(columns, comparisons).get("recall@1") == winner


def test_runs_with_one_name_are_distinguished_by_their_parents(page_of, tmp_path, registry):
    runs = [finished_run(tmp_path / parent / "run", registry) for parent in ("a", "b")]
    assert "“b/run” compared with “a/run”" in page_of(*runs).words


def test_different_items_are_not_tested_in_pairs(page_of, runs):
    np.save(runs[1] / "labels.npy", np.load(runs[1] / "labels.npy")[::-1])
    RunFolder(runs[1]).write_manifest()
    words = page_of(*runs).words
    assert "Not tested: the runs were measured on different items." in words
    assert "Not compared: the runs were measured on different items." in words


def test_runs_with_separate_galleries_are_compared(page_of, runs):
    for run in runs:
        np.save(run / "gallery_embeddings.npy", np.load(run / "embeddings.npy")[::2])
        np.save(run / "gallery_labels.npy", np.load(run / "labels.npy")[::2])
        RunFolder(run).write_manifest()
    assert "Not tested" not in page_of(*runs).words
    for name in ("gallery_embeddings.npy", "gallery_labels.npy"):
        (runs[1] / name).unlink()
    RunFolder(runs[1]).write_manifest()
    assert "Not tested: the runs were measured on different items." in page_of(*runs).words


def test_runs_with_weights_selected_on_the_test_split_are_named_first(
    page_of, runs, tmp_path, registry
):
    third = finished_run(tmp_path / "third", registry, seed=2, selected_on="test")
    words = page_of(*runs, third).words
    assert words.index("Selected on the test split: third.") < words.index("Recall@1")


def test_a_run_without_test_split_is_not_tested(page_of, runs):
    forget_test_split(runs[1])
    assert "Not tested: two didn't use its test split" in page_of(*runs).words
    assert "Not tested: two didn't use its test split" in page_of(*reversed(runs)).words


def test_too_few_too_many_or_repeated_runs_are_refused(runs, tmp_path, registry):
    twice = [runs[0], runs[0] / ".." / runs[0].name]
    for given, message in (
        ([tmp_path], "1 runs were given"),
        ([tmp_path] * 9, "9 runs were given"),
        (twice, "a run was given twice"),
    ):
        with pytest.raises(DmlError, match=message):
            write_side_by_side(given, tmp_path / "page.html", registry)


def test_the_command_writes_a_page_of_one_run_or_of_several(dml, runs, tmp_path):
    out = tmp_path / "page.html"
    assert dml("report", runs[0]).stdout == f"{runs[0] / 'report.html'}\n"
    assert "choose the page to write: --out FILE.html" in dml("report", *runs, code=2).stderr
    assert "omit --out" in dml("report", runs[0], "--out", out, code=2).stderr
    assert dml("report", *runs, "--out", out).stdout == f"{out}\n"
    assert (
        "exists already; nothing was touched" in dml("report", *runs, "--out", out, code=2).stderr
    )
    (runs[1] / "evaluation.json").unlink()
    out.unlink()
    assert (
        "isn't finished: evaluation.json is missing; resume it"
        in dml("report", *runs, "--out", out, code=2).stderr
    )
    assert not out.exists()
    assert json.loads((runs[0] / "evaluation.json").read_text())

"""Prefixes of the embedding: measured when a run ends, later using the command, and shown in the
report.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from train_support.report_world import Page, check_page, finished_run
from train_support.tiny_world import TinyEvaluator

from dml_core import DmlError
from dml_train.measure.evaluate import Embedded, evaluate, select_prefix
from dml_train.report.page import write_report
from dml_train.trained.evaluation import evaluate_run


def test_a_prefix_cuts_queries_and_gallery_alike() -> None:
    rows = np.random.default_rng(0).normal(size=(10, 6))
    labels = np.arange(10) % 3
    whole = Embedded(rows[:4], labels[:4], rows[4:], labels[4:])
    cut = select_prefix(whole, 2)
    assert np.array_equal(cut.embeddings, rows[:4, :2])
    assert np.array_equal(cut.gallery, rows[4:, :2])
    found = evaluate(TinyEvaluator(), cut).to_dict()
    expected = (
        TinyEvaluator().evaluate(rows[:4, :2], labels[:4], rows[4:, :2], labels[4:]).to_dict()
    )
    assert found == expected
    for prefix in (0, 7):
        with pytest.raises(DmlError, match=f"the prefix is {prefix}; expected 1 to 6"):
            select_prefix(whole, prefix)


def test_the_end_of_a_run_and_the_command_measure_the_same(run, registry, dml, tmp_path) -> None:
    folder = run(evaluation={"prefixes": [1, 3]})
    result = folder.read_evaluation()
    name = folder.path
    for prefix, metrics in result["prefixes"].items():
        found = evaluate_run(name, prefix=int(prefix), registry=registry).to_dict()
        assert json.loads(json.dumps(found)) == metrics
    assert set(result["prefixes"]) == {"1", "3"}
    out = tmp_path / "prefixes.json"
    printed = dml("eval", name, "--prefix", 1, "--prefix", 3, "--out", out).output
    assert "The first 3 numbers:" in printed
    assert json.loads(out.read_text()) == result["prefixes"]
    message = dml(
        "eval", name / "embeddings.npy", name / "labels.npy", "--prefix", 1, code=2
    ).output
    assert "slice the array instead" in message


def test_a_prefix_longer_than_the_embedding_is_refused_before_training(run, out) -> None:
    with pytest.raises(DmlError, match="the prefix is 4096; expected 1 to"):
        run(evaluation={"prefixes": [4096]})
    assert not out.exists()


def test_the_report_has_a_table_and_a_curve(tmp_path, registry) -> None:
    prefixes = {"2": {"recall@1": 0.25, "map@r": 0.125}, "4": {"recall@1": 0.4375}}
    run = finished_run(tmp_path / "run", registry, prefixes=prefixes)
    page = Page(write_report(run, registry))
    check_page(page)
    assert "Dimensions Recall@1 MAP@R 2 0.2500 0.1250 4 0.4375 – 5 0.5000 0.2500" in page.words
    assert "Recall@1 from 0.2500 at 2 dimensions to 0.5000 at 5" in page.words

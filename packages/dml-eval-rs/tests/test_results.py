"""Results become text, HTML, JSON, tables of other libraries, and pictures."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import numpy as np
import pytest

from dml_eval_rs import Evaluation, evaluate, index_recall, knn, open_set, verify

RNG = np.random.default_rng(0)
LABELS = np.arange(60) % 6
X = RNG.normal(size=(6, 8))[LABELS] + RNG.normal(size=(60, 8))
EVALUATION = evaluate(X, LABELS, recall_at=(1, 10, 1000))
VERIFICATION = verify(X, LABELS, far=(0.1, 0.01))
OPEN_SET = open_set(X, LABELS, X[:3], LABELS[:3], far=0.1)
INDEX_RECALL = index_recall(knn(X, None, 5)[1], X, None, 5)


@pytest.mark.parametrize(
    ("result", "first"),
    [
        (EVALUATION, f"Recall@1     {EVALUATION.recall[1]:.4f}"),
        (VERIFICATION, f"TAR@FAR=0.1     {VERIFICATION.tar[0.1]:.4f}"),
        (OPEN_SET, f"DIR@FAR=0.1      {OPEN_SET.dir[0.1]:.4f}"),
        (INDEX_RECALL, "index recall@5  1.0000"),
    ],
    ids=["evaluation", "verification", "open-set", "index-recall"],
)
def test_results_are_tables_and_json(result: Any, first: str) -> None:
    assert str(result).splitlines()[0] == first
    for name, value in result.rows():
        assert f'<th style="text-align: left">{name}</th><td>{value}</td>' in result._repr_html_()
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()


def test_html_is_escaped() -> None:
    odd = dataclasses.replace(EVALUATION, means={"recall@1": 1.0}, per_query={})
    assert "<table>" in odd._repr_html_()
    from dml_eval_rs.table import to_html

    assert to_html([("<b>", "&")]).count("&") == 3


def test_values_of_every_query_are_columns_of_any_table() -> None:
    values = EVALUATION.per_query
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(values)
    assert frame["map_at_r"].mean() == pytest.approx(EVALUATION.map_at_r)
    polars = pytest.importorskip("polars", reason="polars is not installed")
    assert polars.DataFrame(values).shape == frame.shape
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    assert pyarrow.table(values).column_names == list(values)
    assert pandas.DataFrame(dataclasses.asdict(VERIFICATION.roc)).columns.tolist() == [
        "far",
        "tar",
        "threshold",
    ]


def test_saved_json_becomes_the_evaluation_again() -> None:
    assert (
        Evaluation.from_dict(json.loads(json.dumps(EVALUATION.to_dict())), EVALUATION.per_query) == EVALUATION
    )


@pytest.fixture
def pyplot() -> Any:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: it is the extra 'plot'").use("agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def test_recall_is_drawn_over_k(pyplot: Any) -> None:
    ax = EVALUATION.plot(label="ours")
    (line,) = ax.lines
    assert line.get_xdata().tolist() == [1, 10]  # 1000 is beyond the gallery
    assert line.get_ydata().tolist() == [EVALUATION.recall[1], EVALUATION.recall[10]]
    assert ax.get_legend().get_texts()[0].get_text() == "ours"
    worse = evaluate(RNG.normal(size=(60, 8)), LABELS, recall_at=(1, 2))
    assert worse.plot(ax) is ax
    assert ax.get_xticks().tolist() == [1, 2, 10]
    assert ax.get_ylim()[0] < worse.recall[1]


def test_the_roc_is_drawn_over_the_far(pyplot: Any) -> None:
    ax = VERIFICATION.plot()
    curve, points = ax.lines
    far, tar = curve.get_data()
    assert far[0] == pytest.approx(1 / VERIFICATION.n_negative)
    np.testing.assert_allclose(tar, np.interp(far, VERIFICATION.roc.far, VERIFICATION.roc.tar))
    assert (
        dict(zip(*(data.tolist() for data in map(np.asarray, points.get_data())), strict=True))
        == VERIFICATION.tar
    )
    assert ax.get_legend() is None


def test_a_plot_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="the ROC curve was not measured"):
        verify(X, LABELS, metrics="tar").plot()
    with pytest.raises(ValueError, match="no Recall@K was measured"):
        evaluate(X, LABELS, recall_at=()).plot()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dml-eval-rs\[plot\]'"):
        EVALUATION.plot()


def test_axes_are_axes(pyplot: Any) -> None:
    with pytest.raises(TypeError, match="ax is a str; expected matplotlib axes"):
        EVALUATION.plot("axes")

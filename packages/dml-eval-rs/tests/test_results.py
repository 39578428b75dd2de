"""Results can be converted to text, HTML, Markdown, LaTeX, CSV, JSON, other libraries' tables, and
plots.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from dml_eval_rs import Verification, compare, evaluate, index_recall, knn, open_set, verify
from dml_eval_rs.metrics.tables import Table, Tabular

RNG = np.random.default_rng(0)
LABELS = np.arange(60) % 6
X = RNG.normal(size=(6, 8))[LABELS] + RNG.normal(size=(60, 8))
METRICS = ["recall@1", "recall@10", "recall@1000", "precision@1", "map@r", "nmi"]
EVALUATION = evaluate(X, LABELS, metrics=METRICS)
VERIFICATION = verify(X, LABELS, metrics=("tar@far=0.1", "tar@far=1e-2", "eer", "auc"))
OPEN_SET = open_set(X, LABELS, X[:3], LABELS[:3], far=0.1)
INDEX_RECALL = index_recall(knn(X, None, 5)[1], X, None, 5)
WORSE = evaluate(X + RNG.normal(size=X.shape), LABELS, metrics=METRICS)
RESULTS: dict[str, tuple[Any, str]] = {
    "evaluation": (EVALUATION, f"Recall@1   {EVALUATION['recall@1']:.4f}"),
    "verification": (VERIFICATION, f"TAR@FAR=0.1     {VERIFICATION['tar@far=0.1']:.4f}"),
    "open set": (OPEN_SET, f"DIR@FAR=0.1      {next(iter(OPEN_SET.dir.values())):.4f}"),
    "index recall": (INDEX_RECALL, "index recall@5  1.0000"),
    "comparison": (compare({"ours": EVALUATION, "theirs": WORSE}), "metric        model   value"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_prints_as_a_table_in_each_form(name: str) -> None:
    result, first = RESULTS[name]
    rows, text = result.table().rows, str(result)
    assert text.splitlines()[0].startswith(first)
    html, markdown, latex = result._repr_html_(), result.to_markdown(), result.to_latex()
    for cells in rows:
        assert f'<th style="text-align: left">{cells[0]}</th><td>{cells[1]}</td>' in html
        assert f"| {' | '.join(cells)} |" in markdown
    assert len(text.splitlines()) == len(rows) + bool(result.table().header)
    assert latex.startswith("\\begin{tabular}{l" + "r" * (len(rows[0]) - 1) + "}\n\\toprule\n")
    assert latex.endswith("\\\\\n\\bottomrule\n\\end{tabular}")
    parsed = list(csv.reader(io.StringIO(result.to_csv())))
    assert len({len(cells) for cells in parsed}) == 1
    assert len(parsed) > len(rows) - 2


def test_csv_has_the_names_and_all_digits() -> None:
    header, *rows = csv.reader(io.StringIO(EVALUATION.to_csv()))
    assert header == ["metric", "value"]
    assert {name: float(value) for name, value in rows} == EVALUATION.to_dict()
    rows = list(csv.reader(io.StringIO(VERIFICATION.to_csv())))[1:]
    assert {name: float(value) for name, value in rows}.items() >= dict(VERIFICATION).items()


@pytest.mark.parametrize("result", [EVALUATION, VERIFICATION, OPEN_SET, INDEX_RECALL])
def test_every_result_is_json(result: Any) -> None:
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()


class Odd(Tabular):
    """A result that contains all forms' special characters."""

    def table(self) -> Table:
        return Table(
            [("a_b & 50 %", "1|2"), ("<i>", 'say "x", $y$'), ("\\", "~^#{}")], ("name", "value")
        )

    precise = table

    def to_dict(self) -> dict[str, float]:
        return {}


def test_each_form_escapes_what_is_special_to_it() -> None:
    odd, table = Odd(), Odd().table()
    assert odd.to_latex().splitlines()[2:7] == [
        r"name & value \\",
        r"\midrule",
        r"a\_b \& 50 \% & 1|2 \\",
        r'<i> & say "x", \$y\$ \\',
        r"\textbackslash{} & \textasciitilde{}\textasciicircum{}\#\{\} \\",
    ]
    assert odd.to_markdown().splitlines()[:3] == [
        "| name | value |",
        "| --- | ---: |",
        r"| a_b & 50 % | 1\|2 |",
    ]
    assert "&lt;i&gt;" in odd._repr_html_()
    assert list(csv.reader(io.StringIO(odd.to_csv()))) == [
        list(table.header),
        *map(list, table.rows),
    ]
    assert str(odd).splitlines()[1] == "a_b & 50 %           1|2"


def test_no_k_beyond_the_gallery_is_printed_unless_all_are() -> None:
    titles = [title for title, _ in EVALUATION.table().rows]
    assert titles == ["Recall@1", "Recall@10", "MAP@R", "NMI", "queries"]
    assert EVALUATION["recall@1000"] == 1
    beyond = evaluate(X, LABELS, metrics=("recall@61", "recall@70"))
    assert [title for title, _ in beyond.table().rows][:2] == ["Recall@61", "Recall@70"]
    gallery = evaluate(X[:5], LABELS[:5], X[5:], LABELS[5:], metrics=("recall@55", "recall@56"))
    assert gallery.n_gallery == 55
    assert [title for title, _ in gallery.table().rows] == ["Recall@55", "queries"]


def test_precision_at_1_is_printed_unless_recall_at_1_is() -> None:
    assert "Precision@1" not in str(EVALUATION)
    assert "Precision@1" in str(evaluate(X, LABELS, metrics=("recall@5", "precision@1")))


def test_values_of_every_query_are_columns_of_any_table() -> None:
    values = EVALUATION.per_query
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(values)
    assert frame["map@r"].mean() == pytest.approx(EVALUATION["map@r"])
    models = pandas.DataFrame({"ours": dict(EVALUATION), "theirs": dict(WORSE)})
    assert models.loc["map@r", "ours"] == EVALUATION["map@r"]
    polars = pytest.importorskip("polars", reason="polars is not installed")
    assert polars.DataFrame(values).shape == frame.shape
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    assert pyarrow.table(values).column_names == list(values)
    assert pandas.DataFrame(asdict(VERIFICATION.roc)).columns.tolist() == [
        "far",
        "tar",
        "threshold",
    ]  # type: ignore[arg-type]


@pytest.fixture
def pyplot() -> Any:
    pytest.importorskip(
        "matplotlib", reason="matplotlib is not installed: it is the extra 'plot'"
    ).use("agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def test_recall_is_drawn_over_k(pyplot: Any) -> None:
    ax = EVALUATION.plot(label="ours")
    (line,) = ax.lines
    assert line.get_xdata().tolist() == [1, 10]  # 1000 is above the gallery's size
    assert line.get_ydata().tolist() == [EVALUATION["recall@1"], EVALUATION["recall@10"]]
    assert ax.get_legend().get_texts()[0].get_text() == "ours"
    worse = evaluate(RNG.normal(size=(60, 8)), LABELS, metrics=("recall@2", "mrr", "recall@1"))
    assert worse.plot(ax) is ax
    assert ax.lines[1].get_xdata().tolist() == [1, 2]
    assert ax.get_xticks().tolist() == [1, 2, 10]
    assert ax.get_ylim()[0] < worse["recall@1"]


def test_the_roc_is_drawn_over_the_far(pyplot: Any) -> None:
    ax = VERIFICATION.plot()
    curve, points = ax.lines
    far, tar = curve.get_data()
    assert far[0] == pytest.approx(1 / VERIFICATION.n_negative)
    np.testing.assert_allclose(tar, np.interp(far, VERIFICATION.roc.far, VERIFICATION.roc.tar))
    marked = dict(zip(*(np.asarray(data).tolist() for data in points.get_data()), strict=True))
    assert marked == {0.1: VERIFICATION["tar@far=0.1"], 0.01: VERIFICATION["tar@far=1e-2"]}
    assert ax.get_legend() is None


def test_a_plot_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    without: Verification = verify(X, LABELS, metrics="tar@far=0.1")
    with pytest.raises(ValueError, match="the ROC curve was not measured"):
        without.plot()
    with pytest.raises(
        ValueError, match=r"no Recall@K was measured; expected metrics such as \('recall@1'"
    ):
        evaluate(X, LABELS, metrics="mrr").plot()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dml-eval-rs\[plot\]'"):
        EVALUATION.plot()


def test_axes_are_axes(pyplot: Any) -> None:
    with pytest.raises(TypeError, match="ax is a str; expected matplotlib axes"):
        EVALUATION.plot("axes")

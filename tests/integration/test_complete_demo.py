"""The complete demo, on a few classes for a few steps."""

from __future__ import annotations

import json
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from dml_core import registry
from dml_train.demo import run_demo
from dml_train.recipe.loading import load_recipe
from dml_train.training.run import train


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Return the folder and the output of a demo that was interrupted before printing the table,
    and resumed.
    """
    out = tmp_path_factory.mktemp("demo") / "run"
    console = Console(file=StringIO(), width=80)
    settings = ("training.steps=40", "dataset.max_classes=160")
    train(load_recipe("demo", settings), out, console=Console(quiet=True))
    run_demo(out, resume=True, overrides=settings, console=console)
    return out, console.file.getvalue()


def test_it_writes_a_complete_run_folder(demo):
    out, _ = demo
    names = {file.name for file in out.iterdir()}
    assert names >= {
        "recipe.toml", "metrics.jsonl", "tensorboard", "checkpoints", "embeddings.npy",
        "labels.npy",
        "evaluation.json", "per_query.npz", "comparison.json", "report.html",
    }  # fmt: skip
    evaluation = json.loads((out / "evaluation.json").read_text())
    assert evaluation.keys() >= {"recall@1", "recall@10", "recall@100", "nmi", "ami", "ari"}
    assert 0 < evaluation["map@r"] < evaluation["r_precision"] < evaluation["recall@1"] < 1


def test_it_compares_four_embeddings_by_the_same_evaluators_and_training_helps(demo):
    out, _ = demo
    comparison = json.loads((out / "comparison.json").read_text())
    assert {name: row["bytes_per_item"] for name, row in comparison.items()} == {
        "raw pixels": 1024, "untrained network": 1024, "trained network": 1024,
        "its 256-bit codes": 32,
    }  # fmt: skip
    embeddings, labels = np.load(out / "embeddings.npy"), np.load(out / "labels.npy")
    for name, evaluator in (("trained network", "exact"), ("its 256-bit codes", "hamming")):
        table = {"name": evaluator, "metrics": ["recall@1", "map@r", "nmi"]}
        again = registry().build("evaluators", table, {"seed": 0}).evaluate(embeddings, labels)
        assert comparison[name].items() >= again.to_dict().items()
    # On 160 classes raw pixels are almost perfect, but the untrained network can improve.
    untrained, trained = comparison["untrained network"], comparison["trained network"]
    assert trained["recall@1"] > untrained["recall@1"]
    assert trained["map@r"] > untrained["map@r"]


def test_it_prints_one_table_with_every_metric_and_reports_the_comparison(demo):
    out, printed = demo
    comparison = json.loads((out / "comparison.json").read_text())
    for name, row in comparison.items():
        (line,) = [line for line in printed.splitlines() if line.strip().startswith(name)]
        shown = ("recall@1", "recall@10", "recall@100", "r_precision", "map@r", "nmi")
        cells = line.strip().removeprefix(name).split()
        assert cells == [*(f"{row[metric]:.3f}" for metric in shown), f"{row['bytes_per_item']:,}"]
    for heading in ("Recall", "MAP@R", "precision", "NMI", "an item"):
        assert heading in printed
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "its 256-bit codes" in page
    assert "Worst classes" in page

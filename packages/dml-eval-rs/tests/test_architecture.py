"""Imports must not go through an `__init__`; the package must have few top modules and short
signatures.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dml_eval_rs
from dml_eval_rs import evaluate, evaluate_levels, evaluate_shards, evaluate_ties

PACKAGE = Path(dml_eval_rs.__file__).parent
PUBLIC = """
Labels Relevance relevance_from_labels
evaluate evaluate_levels evaluate_ties Evaluation compare Comparison Interval
rerank expand_queries
knn range_search hard_negatives index_recall IndexRecall
open_set OpenSet verify Verification Roc binarize
concatenate_blocks kmeans KMeans nmi ami ari evaluate_shards knn_shards verify_shards Peers METRICS
"""
GONE = """
evaluate_codes knn_codes verify_codes
StreamingEvaluator StreamingVerifier PartialCounts PartialPairs
"""


def test_no_module_imports_through_an_init() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"^ *(from|import) (dml_eval_rs( |$)|\.)", text, re.MULTILINE), path
        if path.name == "__init__.py" and path.parent != PACKAGE:
            assert "import " not in text.rpartition('"""')[2], (
                f"{path} imports; expected a docstring only"
            )


def test_few_modules_lie_at_the_top() -> None:
    assert len([*PACKAGE.glob("*.py")]) <= 9


def test_the_public_names_are_those_of_the_plan() -> None:
    missing = set(PUBLIC.split()) - set(dml_eval_rs.__all__)
    assert not missing
    assert not set(GONE.split()) & set(dir(dml_eval_rs))
    assert set(dml_eval_rs.__all__) <= set(dir(dml_eval_rs))
    for name in dml_eval_rs.__all__:
        assert getattr(dml_eval_rs, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'evaluate_codes'"):
        dml_eval_rs.evaluate_codes  # noqa: B018


def test_a_class_imported_first_does_not_hide_the_function_of_its_module() -> None:
    program = "from dml_eval_rs import OpenSet, Verification, open_set, verify"
    show = "print(open_set.__name__, verify.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; {show}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["open_set", "verify"]


def test_the_signature_of_evaluate_is_short_and_shared() -> None:
    parameters = inspect.signature(evaluate).parameters
    assert len(parameters) <= 14
    assert list(parameters) == [
        "embeddings", "labels", "gallery", "gallery_labels", "metrics", "similarity", "ties",
        "unmatched", "exclude",
        "n_clusters", "seed", "threads", "progress", "peers",
    ]  # fmt: skip
    sides = list(parameters)[:4]
    for function in (evaluate_levels, evaluate_ties, evaluate_shards):
        signature = inspect.signature(function)
        given = list(signature.parameters)
        assert given[1:4] == sides[1:], function
        assert given[-1] == "options", function
        for option in list(parameters)[4:]:
            signature.bind("x", "y", **{option: None})


def test_unknown_options_are_refused_by_name() -> None:
    x, labels = np.eye(4), np.arange(4) % 2
    for call in (
        lambda: evaluate_levels(x, {"a": labels}, recall_at=1),  # type: ignore[call-arg]
        lambda: evaluate_ties(x, labels, recall_at=1),  # type: ignore[call-arg]
        lambda: evaluate_shards([x], labels, recall_at=1),  # type: ignore[call-arg]
        lambda: evaluate(x, labels, recall_at=1),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError, match="unexpected keyword argument 'recall_at'"):
            call()

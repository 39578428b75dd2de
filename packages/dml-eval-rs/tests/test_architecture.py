"""The package's structure: no import through an `__init__`, few top-level modules, few files used by `evaluate`."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import dml_eval_rs
from dml_eval_rs import evaluate, evaluate_levels, evaluate_shards, evaluate_ties

PACKAGE = Path(dml_eval_rs.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
PUBLIC = """
Labels Relevance relevance_from_labels evaluate evaluate_levels evaluate_ties Evaluation compare Comparison Interval
knn range_search hard_negatives index_recall IndexRecall open_set OpenSet verify Verification Roc binarize
concatenate_blocks kmeans KMeans nmi ami ari evaluate_shards knn_shards verify_shards Peers METRICS
"""
GONE = """
evaluate_codes knn_codes verify_codes StreamingEvaluator StreamingVerifier PartialCounts PartialPairs
"""


def names_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imports_of(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the package's imported modules, and the imported names, except imports for type checkers."""
    tree = ast.parse(path.read_text())
    ignored = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in ignored:
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            if node.module and node.module.split(".")[0] == "dml_eval_rs":
                yield node.module, [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "dml_eval_rs":
                    yield alias.name, []


@pytest.mark.parametrize("path", FILES, ids=names_of)
def test_no_module_imports_through_an_init(path: Path) -> None:
    for module, names in imports_of(path):
        assert module != "dml_eval_rs", f"from {module} import {', '.join(names)}"
        folder = PACKAGE.joinpath(*module.split(".")[1:])
        # `from dml_eval_rs.inputs import arguments` imports the module itself.
        if folder.is_dir():
            assert names, f"import {module}"
            for name in names:
                assert (folder / f"{name}.py").exists() or (folder / name).is_dir(), (
                    f"from {module} import {name}"
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


def files_of(call: Any) -> set[str]:
    """Return the package's Python files that a call uses."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(f"{PACKAGE}/"):
            seen.add(frame.f_code.co_filename.removeprefix(f"{PACKAGE}/"))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return seen


def test_evaluate_runs_through_few_files() -> None:
    x, labels = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 8
    evaluate(x, labels)  # imports everything
    found = files_of(lambda: evaluate(x, labels))
    assert "retrieval.py" in found
    assert len(found) <= 6, found


def test_the_signature_of_evaluate_is_short_and_shared() -> None:
    parameters = inspect.signature(evaluate).parameters
    assert len(parameters) <= 14
    assert list(parameters) == [
        "embeddings", "labels", "gallery", "gallery_labels", "metrics", "similarity", "ties", "unmatched", "exclude",
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

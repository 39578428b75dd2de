"""Examples in the docstrings of public names run, and must be given for the most used functions and
classes.
"""

from __future__ import annotations

import doctest
import importlib

import pytest

# The names that users call first must show an example.
WITH_EXAMPLE = {
    "dml_core": ("ClassBalancedSampler",),
    "dml_eval_rs": (
        "evaluate", "evaluate_ties", "compare", "binarize", "knn", "range_search", "verify",
        "index_recall",
        "kmeans", "nmi", "ami", "ari", "hard_negatives", "rerank", "expand_queries",
    ),
    "dml_losses": ("NormSoftmax", "InstanceCrossEntropy", "ProxyAnchor"),
    "dml_train": ("load_recipe",),
}  # fmt: skip


def examples_of(package: str) -> dict[str, doctest.DocTest]:
    """Return the examples in the docstrings of a package's public names and methods."""
    module = importlib.import_module(package)
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = [
        test
        for name in module.__all__
        if callable(public := getattr(module, name))
        for test in finder.find(public, name, globs={})
    ]
    return {test.name: test for test in tests if test.examples}


@pytest.mark.parametrize("package", WITH_EXAMPLE)
def test_examples_run_and_the_most_used_names_have_one(package: str) -> None:
    examples = examples_of(package)
    assert examples.keys() >= set(WITH_EXAMPLE[package])
    output: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    for test in examples.values():
        runner.run(test, out=output.append)
    assert not runner.failures, "".join(output)
    assert runner.tries >= len(examples)

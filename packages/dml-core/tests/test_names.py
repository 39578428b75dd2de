"""Check the package's names, and the modules that are loaded when the package is imported."""

from __future__ import annotations

import subprocess
import sys

import dml_core


def test_importing_the_package_brings_neither_arrays_nor_the_evaluator():
    slow = "{'numpy', 'torch', 'dml_eval_rs'}"
    program = f"import sys, dml_core; sys.exit(', '.join({slow} & sys.modules.keys()) or None)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_names_of_evaluation_are_those_of_the_evaluator():
    import dml_eval_rs
    from dml_eval_rs.metrics import names

    for name in ("Labels", "METRICS", "Peers", "Relevance"):
        assert getattr(dml_core, name) is getattr(dml_eval_rs, name)
    assert dml_core.metric_title is names.title_of
    assert dml_core.metric_meaning is names.meaning_of
    assert dml_core.metric_family is names.family_of


def test_all_public_names_exist():
    assert {name for name in dml_core.__all__ if not hasattr(dml_core, name)} == set()

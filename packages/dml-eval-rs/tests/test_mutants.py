"""The faults that the nightly run builds into the evaluator (mutants/run.py) still apply to the
source.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

_PATH = Path(__file__).parents[1] / "mutants" / "run.py"
_SPEC = importlib.util.spec_from_file_location("mutants_run", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
RUN = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(RUN)


def test_each_mutant_changes_one_place_of_its_file() -> None:
    mutants = RUN.mutants()
    assert len(mutants) >= 25
    for name, mutant in mutants.items():
        assert RUN.source_of(mutant).read_text().count(mutant["from"]) == 1, name
        assert mutant["from"] != mutant["to"], name

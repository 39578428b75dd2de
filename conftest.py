"""What is the same for the tests of all packages: hypothesis' examples, torch's random numbers, and a plain terminal.

The same examples for everybody, whatever the machine and however slow: a red run is of what changed. New examples are
for ``pytest --hypothesis-profile=search``, which also writes what it found wrong to ``.hypothesis/``.
"""

from __future__ import annotations

import os
import sys

from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture import providers

settings.register_profile(
    "search",
    settings.get_profile("ci"),
    derandomize=False,
    max_examples=1000,
    database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
)
settings.load_profile("ci")
# Some of these are set where CI runs, and what is printed heeds them.
for _name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR", "COLUMNS", "LINES"):
    os.environ.pop(_name, None)


def pytest_sessionstart() -> None:
    """Let no example come from the project's code, but in a search.

    Hypothesis tries numbers and words that stand in modules which are loaded by then: those before it decide which.
    """
    if settings.default.derandomize:
        providers._get_local_constants = providers.Constants


def pytest_runtest_setup() -> None:
    """Let torch begin anew: what a test draws depends neither on those before it nor on what other workers took."""
    if (torch := sys.modules.get("torch")) is not None:  # the evaluator's tests do without
        torch.manual_seed(0)

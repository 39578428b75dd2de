"""A trial: calls with a chosen kernel, screen and sizes (core/src/sizes.rs), and the paths that
were used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dml_eval_rs._native as _native


@contextmanager
def trial(**choices: Any) -> Iterator[Counter[str]]:
    """Use this kernel, screen and sizes (by default, the usual ones) in the context; at the end,
    count used paths.
    """
    taken: Counter[str] = Counter()
    _native.begin_trial(**{name: choice for name, choice in choices.items() if choice is not None})
    try:
        yield taken
    finally:
        taken.update(_native.end_trial())

"""Limits for counts in commands; a larger number is almost certainly a typo, and could exhaust the
memory.
"""

from __future__ import annotations

# For loaders, ranks or simultaneous runs; this exceeds the number of cores of any machine.
MOST_PROCESSES = 1_000
MOST_RUNS = 10_000  # repetitions or folds of a recipe

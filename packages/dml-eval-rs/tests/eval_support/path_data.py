"""Small data that is pruned like large data, and settings that use large data's paths on small
data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import dml_eval_rs._native as _native

NEVER = 2**40
# With these sizes, 100 to 150 rows of 24 numbers use multiple tasks and blocks, tables, prefixes
# and rounded rows.
_TASKS = {"task_row_panels": 2, "task_column_panels": 1}
_ALONG = {"directions": 16, "rounded_words": NEVER, **_TASKS}
_SKIPPING = {"directions": 16, "rounded_words": 4, **_TASKS}
_WHOLE = {"directions": 0, "rounded_words": NEVER}
_ROUNDING = {"directions": 0, "rounded_words": 4, **_TASKS}
_FEW = {"directions": 2, **_TASKS}
_BATCHES = {"count_bytes": 1, "bytes_per_input_byte": 0, "block_bytes": 4000}
_FEW_LISTS = {"candidate_bytes": 1}
_PARTS = {
    "table_queries": 7, "table_keys": 175, "table_item_words": 1,
    "class_table": 2,
}  # fmt: skip
_SCREEN = {"many_positives": NEVER, "few_queries": 0, "table_items": 0}
_GUESSED = {"directions": 0, "guess_spacing": 1}
_GUESSED_RANKS = {"guess_spacing": 1, "counted_brackets": 0, "sampled_per_listed": NEVER}
_TABLES = {"table_items": NEVER, "few_queries": 0}

EVALUATION_WAYS: dict[str, dict[str, int]] = {
    "whole rows": {**_SCREEN, **_WHOLE, "class_table": NEVER},
    "rounding whole rows": {**_SCREEN, **_ROUNDING, "class_table": NEVER},
    "rounding in batches": {**_SCREEN, **_ROUNDING, **_BATCHES},
    "whole rows in blocks": {**_SCREEN, **_WHOLE, "block_bytes": 1},
    "whole rows in batches": {**_SCREEN, **_WHOLE, **_BATCHES},
    "whole rows in narrow panels": {**_SCREEN, **_WHOLE, "narrow_panel_words": 1},
    "directions": {**_SCREEN, **_ALONG},
    "directions in batches": {**_SCREEN, **_ALONG, **_BATCHES},
    "skipping": {**_SCREEN, **_SKIPPING},
    "skipping in batches": {**_SCREEN, **_SKIPPING, **_BATCHES},
    "few directions": {
        **_SCREEN,
        **_FEW,
        "class_table": 1,
        "pairs_per_open_key": NEVER,
        "counted_brackets": 1,
    },
    "tables": {"many_positives": 0, "class_table": 2},
    "tables in parts": {"many_positives": 0, **_PARTS},
    "values": {"many_positives": 0, "value_queries": 0, "items_per_open_value": 0},
    "values in blocks": {
        "many_positives": 0,
        "value_queries": 0,
        "items_per_open_value": 4,
        "block_bytes": 1,
        "table_keys": 300,
    },
    "values left open": {"many_positives": 0, "value_queries": 0, "items_per_open_value": NEVER},
    "by a sample": {**_SKIPPING, "counted_brackets": 1},
    "guessed": {**_SCREEN, **_GUESSED_RANKS, "directions": 0},
    "guessed along directions": {**_SCREEN, **_SKIPPING, **_BATCHES, **_GUESSED_RANKS},
    "guessed too high": {
        **_SCREEN,
        **_BATCHES,
        **_GUESSED_RANKS,
        "directions": 0,
        "guess_percent": 0,
    },
    "few and many": {**_SKIPPING, "many_positives": 4, **_PARTS},
}
SEARCH_WAYS: dict[str, dict[str, int]] = {
    "whole rows": {**_SCREEN, **_WHOLE, "guess_spacing": 1},
    "rounding whole rows": {**_SCREEN, **_ROUNDING, "guess_spacing": 1},
    "rounding, no sample": {
        **_SCREEN,
        **_ROUNDING,
        "guess_spacing": 0,
        **_FEW_LISTS,
    },
    "whole rows in blocks": {**_SCREEN, **_WHOLE, "guess_spacing": 1, "block_bytes": 1},
    "whole rows in narrow panels": {
        **_SCREEN,
        **_WHOLE,
        "narrow_panel_words": 1,
        **_FEW_LISTS,
    },
    "directions": {**_SCREEN, **_ALONG, "guess_spacing": 1},
    "skipping": {**_SCREEN, **_SKIPPING, "guess_spacing": 0},
    "skipping from cells": {**_SCREEN, **_SKIPPING, "guess_spacing": 1, "cell_items": 16},
    "skipping in batches": {
        **_SCREEN,
        **_SKIPPING,
        "guess_spacing": 1,
        "range_queries": 9,
        **_FEW_LISTS,
    },
    "few directions": {**_SCREEN, **_FEW, "guess_spacing": 0, **_FEW_LISTS},
    "guessed": {**_SCREEN, **_GUESSED},
    "guessed too low": {**_SCREEN, **_GUESSED, "guess_percent": 10_000, **_FEW_LISTS},
    "guessed too high": {**_SCREEN, **_GUESSED, "guess_percent": 0, "block_bytes": 1},
    "tables": _TABLES,
    "tables in parts": {**_TABLES, **_PARTS},
    "tables of few keys": {**_TABLES, "table_queries": 1, "table_keys": 4},
    "few queries": {"few_queries": NEVER},
    "allowed one by one": {"items_per_allowed": 0, "range_queries": 9},
}
VERIFICATION_WAYS: dict[str, dict[str, int]] = {
    "sieved": _TASKS,
    "decided": {**_TASKS, "verify_sample": 60, "verify_listed": 40, "distance_table": 7, **_PARTS},
    "decided from tables": {
        "verify_sample": 60,
        "verify_listed": 40,
        "pairs_per_open_key": NEVER,
        **_PARTS,
    },
    "both": {"verify_sample": 200, "verify_listed": 300, "block_bytes": 1},
    "slots in parts": {"slot_part": 5},
    "full lists": {"slot_list": 1},
}

# Sizes are small, medium, or the default.
SIZES: dict[str, list[int | None]] = {
    "block_bytes": [1, 3000, None], "task_row_panels": [1, 3, None],
    "task_column_panels": [1, 2, None],
    "directions": [0, 1, 2, 9, 16, 24], "rounded_words": [2, 4, 7, None],
    "many_positives": [0, 3, NEVER],
    "counted_brackets": [1, 3, None], "pairs_per_open_key": [0, 30, NEVER],
    "count_bytes": [1, 4000, None], "bytes_per_input_byte": [0, None], "class_table": [1, 3, None],
    "table_keys": [1, 60, None], "table_queries": [1, 7, None],
    "value_queries": [0, None], "items_per_open_value": [0, 4, NEVER],
    "table_item_words": [1, 400, None],
    "guess_spacing": [0, 1, 2, None], "sampled_per_listed": [0, None, NEVER],
    "guess_percent": [0, 60, 10_000, None], "nearest_bytes": [1, None],
    "candidate_bytes": [1, 9000, None],
    "cell_items": [1, 32, None], "range_queries": [1, 9, None],
    "verify_sample": [1, 80, None], "verify_listed": [20, 60, None], "distance_table": [1, 9, None],
    "slot_part": [1, 30, None], "slot_list": [1, 100, None],
    "narrow_panel_words": [1, None], "few_queries": [0, NEVER], "table_items": [0, 20, None],
    "items_per_allowed": [0, 2, NEVER],
}  # fmt: skip
KINDS = ("decaying", "subspace", "offset", "clusters", "duplicates", "isotropic", "shuffled")


def screens() -> list[tuple[str, str]]:
    """List this CPU's kernels, with the screens that differ."""
    both = [(kernel, screen) for kernel in _native.kernels() for screen in ("16-bit", "float32")]
    equal = {("portable", "16-bit"), ("neon", "16-bit"), ("portable-bytes", "float32")}
    return [pair for pair in both if pair not in equal]


def labels_of(n: int) -> np.ndarray:
    """Label rows in consecutive classes of 2, 3 and 8 items."""
    sizes = np.resize([2, 3, 8], n)
    return np.repeat(np.arange(n), sizes)[:n]


def rows_of(
    kind: str, labels: np.ndarray, dim: int, seed: int, dtype: Any = np.float32
) -> np.ndarray:
    """Make rows near the centres of classes.

    Numbers decay along rows ("decaying", "offset" and "duplicates"), rows lie in a subspace except
    for a little noise ("subspace"), are nearly equal within classes ("clusters"), or can't be
    pruned ("isotropic"). Two pairs of "duplicates" have different labels, and other pairs differ by
    a single bit.
    """
    rng = np.random.default_rng(seed)
    n = len(labels)
    noise = {"clusters": 0.01, "isotropic": 1.5}.get(kind, 0.3)
    x = rng.normal(size=(labels.max() + 1, dim))[labels] + noise * rng.normal(size=(n, dim))
    if kind == "subspace":
        x[:, dim // 4 :] *= 1e-3
        x = x @ np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    elif kind not in {"isotropic", "clusters"}:
        x *= np.exp(-0.25 * np.arange(dim))
    if kind == "offset":
        x += 3
    is_integer = np.dtype(dtype).kind in "iu"
    if is_integer:
        zero = 128 * (np.dtype(dtype).kind == "u")
        x = np.clip(np.rint(20 * x), -127, 126) + zero
    x = x.astype(dtype)
    if kind == "duplicates":
        x[1:-8:6] = x[0:-9:6]  # copies, often with equal labels
        x[[5, -3]] = x[[40 % n, 20 % n]]
        near = x[2:-8:6].copy()
        near[:, 0] = (
            near[:, 0] + 1 if is_integer else np.nextafter(near[:, 0], np.array(np.inf, dtype))
        )
        x[3:-7:6] = near
    return x


def codes_of(x: np.ndarray) -> np.ndarray:
    """Make codes that are similar if rows are similar: sums of signs along random directions."""
    directions = np.random.default_rng(0).normal(size=(x.shape[1], 40))
    return np.packbits(x.astype(np.float64) @ directions > 0, axis=1)

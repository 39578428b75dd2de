"""Compare fast paths under all options with the slow reference; sizes are lowered so that small
data uses them.

The core counts paths (`Control::took`). The matrix of paths and options is printed after the tests.
A test fails if a cell can be reached but was not, or if it was reached although `IMPOSSIBLE` lists
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from eval_support.path_cases import EVALUATIONS, SEARCHES, VERIFICATIONS, Case, varied
from eval_support.path_data import (
    EVALUATION_WAYS,
    SEARCH_WAYS,
    SIZES,
    VERIFICATION_WAYS,
    screens,
)
from eval_support.trial import trial
from hypothesis import given, settings
from hypothesis import strategies as st

import dml_eval_rs._native as _native
from dml_eval_rs import hard_negatives, knn

FAMILIES: dict[str, tuple[Mapping[str, Any], Mapping[str, dict[str, int]], int]] = {
    "evaluate": (EVALUATIONS, EVALUATION_WAYS, 100),
    "search": (SEARCHES, SEARCH_WAYS, 150),
    "verify": (VERIFICATIONS, VERIFICATION_WAYS, 30),
}
_TABLES = ("table of keys", "table of keys in blocks")
PATHS: dict[str, tuple[str, ...]] = {
    "evaluate": (
        *_TABLES, "positives by pairs", "positives from tables", "positives dropped",
        "screen or tables by a sample",
        "ranks from keys", "ranks from distances", "first ranks from distances",
        "counts from keys",
        "ranks from values", "near values ordered by keys", "values leave too much open",
        "first ranks selected", "items near positives sorted",
        "open pairs from a table", "screened in batches", "rounds of peers", "narrow panel",
        "thresholds guessed", "thresholds sampled",
    ),
    "search": (
        *_TABLES, "thresholds from cells", "thresholds sampled", "thresholds guessed",
        "neighbours of all items", "neighbours from tables", "neighbours from tables of parts",
        "neighbours in batches", "ranges in batches",
        "narrow panel",
        "few queries", "allowed items one by one",
        "bounds by pairs", "bounds from tables", "bounds decided by scores",
        "centroids nearer than the last",
    ),
    "verify": (
        *_TABLES, "slots", "slots in parts", "slots from full lists",
        "crossings among slots", "crossings between slots", "crossings sieved",
        "crossings decided", "negatives decided from a table",
    ),
}  # fmt: skip
Rule = tuple[str, Callable[[str, Any], bool], str]


def _chooses(option: Any) -> bool:
    """Return whether the core gets lists of allowed items; otherwise, the gallery is smaller."""
    return option.allowed in {"lists", "most"}


def _has_lists(option: Any) -> bool:
    return bool(getattr(option, "ignored", False) or getattr(option, "relevant", False))


# By function: a pattern of paths, which options can use these paths, and why other options can't.
IMPOSSIBLE: dict[str, tuple[Rule, ...]] = {
    "evaluate": (
        ("Bits", lambda _, o: o.similarity == "hamming", "only codes are screened by bits"),
        ("Float32|Int16|BFloat16|narrow", lambda _, o: o.similarity != "hamming",
         "codes have no numbers"),
        ("both sides", lambda _, o: not (o.gallery or _has_lists(o)),
         "a pair counts for only one query"),
        (", rows$", lambda name, _: name != "shards",
         "blocks of one array are compared for both sides"),
        ("leaving out", lambda _, o: _has_lists(o), "every item of another class counts"),
        ("several brackets", lambda name, _: name.startswith("all ranks"),
         "one bracket is enough for the first ranks"),
        ("dropped", lambda name, _: not name.startswith("all ranks"), "every rank matters"),
        ("dropped", lambda _, o: o.kind != "clusters", "no negative comes before a positive"),
        ("open pairs", lambda _, o: o.kind != "clusters",
         "all negatives are far below the positives"),
        ("open pairs", lambda _, o: o.similarity != "hamming", "a screened distance is exact"),
        ("guessed|sampled", lambda name, o: not name.startswith("all ranks") and o.how != "shards",
         "every rank matters, or the counts of a part don't show whether a guess was too high"),
        ("thresholds sampled", lambda _, o: o.similarity != "hamming", "codes have no prefixes"),
        ("ranks from", lambda _, o: o.how != "shards", "parts of rows are counted"),
        ("counts from keys", lambda _, o: o.how == "shards", "whole rows are ranked"),
        ("ranks from keys|values|selected|near positives", lambda _, o: o.similarity != "hamming",
         "distances are counted"),
        ("near positives", lambda name, o: o.how == "shards" or name.startswith("all ranks"),
         "only the first ranks matter"),
        ("selected", lambda name, o: o.how != "shards" and not name.startswith("all ranks"),
         "every rank matters"),
        ("values", lambda _, o: o.how not in {"rules", "shards"} and o.ties == "index",
         "values do not show which items are tied"),
        ("values", lambda _, o: not o.graded, "grades depend on the order of positives"),
        ("near values|too much open", lambda _, o: o.kind == "duplicates",
         "values decide the order of a hundred other rows"),
        ("ranks from distances", lambda _, o: o.similarity == "hamming",
         "only codes have integer distances"),
        ("first ranks from", lambda name, o: not name.startswith("all ranks")
         and (o.how == "rules" or o.ties == "index"),
         "every rank matters, or counts of distances are enough"),
        ("rounds", lambda name, _: name == "peers", "a single process doesn't share work"),
        ("batches", lambda _, o: o.how != "shards", "parts are counted in one batch"),
    ),
    "search": (
        ("Bits", lambda _, o: o.similarity == "hamming", "only codes are screened by bits"),
        ("Float32|Int16|BFloat16|narrow", lambda _, o: o.similarity != "hamming",
         "codes have no numbers"),
        ("ByteQuad", lambda _, o: o.dtype in {np.int8, np.uint8}, "the numbers aren't bytes"),
        ("(amx|vnni), Int16Pair, whole|bytes, Float32, whole",
         lambda _, o: o.dtype not in {np.int8, np.uint8},
         "whole rows of bytes are multiplied as bytes"),
        ("cells|sampled", lambda _, o: o.similarity != "hamming",
         "cells are means of numbers, and a sample without a guess is of prefixes"),
        ("cells", lambda _, o: o.kind != "shuffled", "adjacent rows aren't similar"),
        (
            "cells|neighbours from tables",
            lambda _, o: o.how != "hard_negatives",
            "the nearest cells contain the query's label; tables can't filter",
        ),
        (
            "few queries",
            lambda _,
            o: o.how == "shards" or (bool(o.gallery or o.exclude or o.allowed) and o.how == "knn"),
            "a search in a gallery reads its items while it looks for neighbours",
        ),
        ("bounds (by pairs|from)", lambda _, o: bool(o.below), "no positive bounds the others"),
        ("bounds from", lambda _, o: not o.relevant, "queries don't share lists"),
        ("one by one", lambda _, o: _chooses(o), "queries have no lists"),
        ("leaving out", lambda _, o: o.relevant, "labels alone exclude matches"),
        (
            "cells|sampled|neighbours from tables|few queries|in blocks",
            lambda _, o: not _chooses(o),
            "a cell, table or sample of prefixes has items that aren't allowed",
        ),
        ("sampled|guessed|of all items", lambda _, o: o.allowed != "lists",
         "queries have different items"),
        ("of keys$", lambda _, o: not _chooses(o) or o.similarity != "hamming",
         "codes have no directions"),
        ("decided by scores", lambda _, o: bool(o.below), "no positive bounds the others"),
        (
            "both sides",
            lambda _, o: o.how not in {"kmeans", "shards"} and not (
                o.gallery or o.exclude or o.allowed or o.relevant),
            "queries differ from the gallery, or lists exclude items",
        ),
        (
            "avx512.*skipping tiles, both",
            lambda _, o: o.below != "hardest" or o.kind != "duplicates",
            "half of the items are nearer than these bounds: 9 % of 16 columns have none of them",
        ),
        (
            ", rows$|in batches",
            lambda _, o: (o.how != "range" and o.k > 1) or bool(
                o.gallery or o.exclude or o.allowed or o.relevant),
            "the pairs of an array are compared once in a range, or if lists are short",
        ),
        ("ranges", lambda _, o: o.how == "range" and (o.gallery or o.allowed),
         "an array's own range is one triangle"),
        ("neighbours|sampled|from cells", lambda _, o: o.how != "range",
         "a range knows its threshold"),
        ("^(avx|neon-bf16).*Float32", lambda _, o: o.how != "kmeans",
         "k-means takes the 16-bit screen"),
        ("sampled|from cells|in blocks", lambda _, o: o.how != "kmeans",
         "the centroids are fewer than a panel"),
        (
            "guessed|of all items",
            lambda _, o: o.how not in {"range", "kmeans"},
            "the threshold is given; the centroids are fewer than a panel",
        ),
        ("of all items", lambda _, o: o.k > 1, "for k = 1, a guess is never too high"),
        ("centroids", lambda _, o: o.how == "kmeans", "only k-means has centroids"),
        (
            "in blocks",
            lambda _, o: o.how not in {"range", "hard_negatives"},
            "only small tables are computed, for directions and bounds",
        ),
        (
            "of keys$",
            lambda _,
            o: o.similarity != "hamming" or o.how not in {"range",
                "hard_negatives"} or bool(o.below),
            "codes have no directions",
        ),
    ),
    "verify": (
        ("Float32|crossings|slots|decided", lambda _, o: o.similarity != "hamming",
         "codes are counted by distance"),
        ("both sides", lambda _, o: not o.gallery, "a pair serves one side"),
        (", rows$", lambda _, o: o.gallery, "an array's pairs form a triangle"),
    ),
}  # fmt: skip


def screen_paths(family: str) -> Iterator[str]:
    """List the steps of this CPU's screens by name."""
    words = {"neon-bf16": "BFloat16Pair", "portable-bytes": "Float32"}
    for kernel, screen in screens():
        word = words.get(kernel, "Int16Pair") if screen == "16-bit" else "Float32"
        if family == "search" and kernel.endswith(("amx", "vnni", "bytes")) and screen == "16-bit":
            for shape in ("rows", "both sides"):
                yield f"{kernel}, ByteQuad, whole rows, {shape}"
        hows = ["whole rows", "along directions"]
        if word == "Int16Pair":
            hows += ["along directions, skipping tiles", "whole rows, skipping tiles"]
        if family == "verify":
            hows = ["whole rows"] if screen == "float32" else []
        for how in hows:
            for shape in ("rows", "both sides"):
                yield f"{kernel}, {word}, {how}, {shape}"
            if family != "search":
                yield f"several brackets: {kernel}, {word}, {how}"
            if family != "verify":
                yield f"leaving out pairs: {kernel}, {word}, {how}"
    for kernel in {kernel for kernel, _ in screens()}:
        if family != "verify":
            yield f"{kernel}, Bits, whole rows, rows"
            yield f"{kernel}, Bits, whole rows, both sides"
        if family == "evaluate":
            yield f"leaving out pairs: {kernel}, Bits, whole rows"


def rows_of(path: str) -> list[str]:
    """Return the rows of the matrix for a path: if it is a screen, the screen's row and a row per
    extra.
    """
    if not path.startswith("screen: "):
        return [path]
    parts = path.removeprefix("screen: ").split(", ")
    extras = [part for part in parts if part in {"leaving out pairs", "several brackets"}]
    own = [part for part in parts if part not in extras]
    return [", ".join(own), *(f"{extra}: {', '.join(own[:-1])}" for extra in extras)]


def is_possible(family: str, path: str, name: str, option: Any) -> bool:
    return all(can(name, option) for part, can, _ in IMPOSSIBLE[family] if re.search(part, path))


def assert_agrees(case: Case, where: str) -> None:
    difference = case.differ(case.call(), case.expected)
    assert difference is None, f"{where}: {difference}"


def matrix_of(family: str) -> dict[str, set[str]]:
    """Call with all options in all ways; return, per path, the options that used it."""
    options, ways, n = FAMILIES[family]
    matrix: dict[str, set[str]] = {}
    for name, option in options.items():
        case = option.case(n, 1)
        for sizes in ways.values():
            for kernel, screen in screens():
                if (
                    family == "verify" and screen == "16-bit"
                ):  # verification only screens in float32
                    continue
                with trial(kernel=kernel, screen=screen, **sizes) as taken:
                    assert_agrees(case, f"{family}, {name}, {kernel}, {screen}, {sizes}")
                for path in taken:
                    for row in rows_of(path):
                        matrix.setdefault(row, set()).add(name)
    return matrix


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_path_is_taken_under_every_option(family: str, record_property: Any) -> None:
    options = FAMILIES[family][0]
    matrix = matrix_of(family)
    paths = [*sorted(screen_paths(family)), *PATHS[family]]
    lines = [f"Paths of {family}: x taken, . impossible (tests/test_paths.py says why)"]
    lines += [f"  {chr(ord('A') + i % 26)}{i // 26 or ''} {name}" for i, name in enumerate(options)]
    lines.append(" " * 60 + "".join(chr(ord("A") + i % 26) for i in range(len(options))))
    wrong = []
    for path in paths:
        cells = ""
        for name, option in options.items():
            is_taken, can_be = name in matrix.get(path, ()), is_possible(family, path, name, option)
            cells += "x" if is_taken else "!" if can_be else "."
            if is_taken != can_be:
                wrong.append(
                    f"{path} / {name}: {'taken, though impossible' if is_taken else 'not taken'}"
                )
        lines.append(f"{path:<60}{cells}")
    record_property("matrix", "\n".join(lines))
    assert not wrong, "\n".join(wrong)
    unknown = {row for row in matrix if row not in paths}
    if family != "evaluate":  # shards count positives, using paths of `evaluate`
        unknown -= {*PATHS["evaluate"]}
    assert not unknown, f"paths that no list names: {sorted(unknown)}"


@given(data=st.data())
@settings(
    deadline=None, max_examples=settings.default.max_examples // 2 if settings.default else 50
)
def test_drawn_paths_data_and_options_agree_with_the_reference(data: Any) -> None:
    options = data.draw(st.sampled_from([EVALUATIONS, EVALUATIONS, SEARCHES, VERIFICATIONS]))
    name = data.draw(st.sampled_from([*options]))
    option = varied(options[name], lambda choices: data.draw(st.sampled_from(choices)))
    # Because shards are divided at row 30, use sizes near 30 and larger.
    sizes = st.integers(29, 30) if options is VERIFICATIONS else st.integers(31, 67)
    case = option.case(data.draw(sizes), data.draw(st.integers(0, 10**6)))
    kernel, screen = data.draw(st.sampled_from(screens()))
    drawn = {size: data.draw(st.sampled_from(choices)) for size, choices in SIZES.items()}
    with trial(kernel=kernel, screen=screen, **drawn):
        assert_agrees(case, f"{name}, {kernel}, {screen}, {drawn}")


@pytest.mark.parametrize("kernel", _native.kernels())
def test_small_galleries_are_searched_in_tables_or_from_guesses(kernel: str) -> None:
    x = np.random.default_rng(0).normal(size=(600, 32)).astype(np.float32)
    labels = np.arange(600) % 3
    small = {"gallery": x[:150], "gallery_labels": labels[:150]}
    calls: dict[str, list[Callable[[], object]]] = {
        "neighbours from tables": [lambda: knn(x, x[:450], 10), lambda: knn(x, x[:200], 1)],
        "thresholds guessed": [
            lambda: knn(x, x[:500], 10),
            lambda: hard_negatives(x, labels, 10, **small),
        ],
    }
    for path, of_path in calls.items():
        for call in of_path:
            with trial(kernel=kernel) as taken:
                call()
            assert taken[path], (path, taken)

"""docs/guide/papers-claims.md is what its command writes from the kept runs, and its verdicts follow from the noise."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dml_train.measure.intervals import pooled

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/losses"))
    return importlib.import_module("papers_page")


def test_the_page_is_what_the_kept_runs_say(page):
    written = page.write_page(page.Records())
    assert page.PAGE.read_text(encoding="utf-8") == written, (
        "docs/guide/papers-claims.md is older than its records; run 'python benchmarks/losses/papers_page.py'"
    )


def test_every_claim_names_rows_of_a_published_table(page):
    for paper in page.PAPERS:
        for claim in paper.claims:
            higher, lower = page.published(paper.name, claim)
            assert not higher < lower, (paper.name, claim.says)  # NaN: the paper prints no figure
            if claim.level:
                assert not higher > lower + page.LEVEL, (paper.name, claim.says)


@pytest.mark.parametrize(
    ("level", "difference", "expected"),
    [
        (False, 3.0, "same"),
        (False, -3.0, "**opposite**"),
        (False, 1.9, "undecided"),
        (False, -1.9, "undecided"),
        (True, 0.9, "same"),
        (True, 1.9, "undecided"),
        (True, 2.9, "undecided"),
        (True, 3.1, "**opposite**"),
        (True, -3.1, "**opposite**"),
    ],
)
def test_a_difference_within_the_noise_decides_nothing(page, level, difference, expected):
    claim = page.Claim("a claim", "table-2", "sop", "s = 64", "s = 16", (), level=level)
    assert page.direction(claim, difference, 2.0) == expected


def test_the_noise_has_a_part_for_runs_and_one_for_each_sides_classes(page):
    one, three = (page.Figures(seeds, (0.0, 0.0), (0.0, 0.0)) for seeds in (1, 3))
    spread = pooled([[1.0, 2.0, 3.0], [4.0, 4.0, 7.0]])
    assert page.noise(one, one, 0, None) == 0
    assert page.noise(one, one, 0, spread) == pytest.approx(spread.half_width_of_difference(1))
    assert page.noise(three, three, 0, spread) == pytest.approx(spread.half_width_of_difference(3))
    assert page.noise(one, three, 0, spread) == pytest.approx(spread.half_width(1) * (1 + 1 / 3) ** 0.5)
    by_class = (page.Figures(1, (0.0, 0.0), halves) for halves in ((9.0, 3.0), (9.0, 4.0)))
    assert page.noise(*by_class, 1, None) == 5


def test_the_noise_of_classes_is_that_of_their_differences_where_both_rows_have_them(page):
    rng = np.random.default_rng(0)
    queries = rng.integers(5, 15, 200).astype(float)
    means = rng.uniform(0, 100, (2, 200))
    rows = [page.Figures(1, (0.0,), (50.0,), np.stack([mean * queries, queries])) for mean in means]
    assert page.class_noise(rows[0], rows[0], 0) == 0
    raised = page.Figures(1, (0.0,), (50.0,), np.stack([(means[0] + 7) * queries, queries]))
    assert page.class_noise(raised, rows[0], 0) == pytest.approx(0, abs=1e-9)
    # As the bootstrap over classes has it.
    drawn = rng.integers(0, 200, (4000, 200))
    differences = ((means[0] - means[1]) * queries)[drawn].sum(1) / queries[drawn].sum(1)
    assert page.class_noise(*rows, 0) == pytest.approx(1.96 * differences.std(), rel=0.05)
    assert page.class_noise(rows[0], rows[1]._replace(classes=None), 0) == pytest.approx(50 * 2**0.5)

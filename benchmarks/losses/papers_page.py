"""A page with a table a paper: what it claims, what the recorded runs show, in which direction, and how sure.

    python benchmarks/losses/papers_page.py        # writes benchmarks/results/papers-claims.md

The figures come from benchmarks/results/losses-claims.jsonl, losses-han.jsonl and losses-units.jsonl; `paper_claims.py`
lists the claims.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from bench_claims import STUDIES, Record
from claim import GLYPHS, HAN, TUNED, UNITS, Arm, Claim, Compared
from class_intervals import METRICS as CLASS_METRICS
from paper_claims import LONG, PAPERS, SHORT

from dml_train.measure.intervals import Spread, pooled
from dml_train.studies.reproduce.paper import papers

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "benchmarks" / "results" / "papers-claims.md"
RECORDS = {GLYPHS: "losses-claims.jsonl", HAN: "losses-han.jsonl", UNITS: "losses-units.jsonl"}
DATASETS = {"sop": "SOP", "cub": "CUB", "cars196": "CARS196", "in-shop": "In-Shop"}
SAME, OPPOSITE, UNDECIDED = "same", "**opposite**", "undecided"
LEVEL = 1.0  # a paper's rows closer than this are level, in points
METRICS = ("recall@1", "map@r")
COLUMNS = ("claim", "published", "measured on", "Recall@1", "MAP@R", "direction", "how sure")

HEAD = """\
`python benchmarks/losses/papers_page.py` writes this page from the kept runs: \
[losses-claims.jsonl](losses-claims.jsonl) (glyphs, [tables](losses-claims.md)), \
[losses-han.jsonl](losses-han.jsonl) ([Han characters](../../docs/guide/han-characters.md), of the size of \
Stanford Online Products) and [losses-units.jsonl](losses-units.jsonl) \
([game units](../../docs/guide/pictures.md#the-losses-compared), fine-grained pictures). \
Published figures are Recall@1 on photographs, by networks pretrained on ImageNet. The runs \
here train a small network from scratch on drawn characters, or EfficientNet-Lite0 from ImageNet's weights on the \
units' sprites. Only the **direction** of a difference can be compared.

- **Published**: the higher row and the lower one, in percent. **Recall@1**, **MAP@R**: the same two rows on \
the test classes here, and their difference with its noise.
- **Noise**: half the 95 % interval of the difference. Its part for runs is the spread of all settings with \
several seeds; for two single runs it is, in Recall@1 and MAP@R: {spreads}. It is left out where both rows \
are of one network. Its part for test classes is the cluster bootstrap's of either row, or, on the units, that of \
the difference, class by class; the glyphs' runs lack it.
- **Direction**: *same* or *opposite* for a difference larger than its noise, else *undecided*. Where the \
paper has two rows level, *same* means within {level:.0f} point, and *opposite* farther from that than the \
noise. It is the direction of Recall@1, the papers' metric, and of MAP@R where that differs: MAP@R is \
farther from its ceiling and shows more.
- **How sure**: *sure* with three seeds a row, *likely* with fewer.
"""
WIDTH = 135  # characters of a line of text


class Figures(NamedTuple):
    """The measured figures of one side of a comparison, of Recall@1 and MAP@R, in percent.

    Args:
        seeds: the number of runs.
        means: over the runs.
        by_class: half the intervals over test classes; 0 if the record lacks them.
        classes: of each metric and each test class the sum over its queries, in percent, and the number of queries,
            (metrics + 1, classes); None if the record lacks them.
    """

    seeds: int
    means: tuple[float, ...]
    by_class: tuple[float, ...]
    classes: npt.NDArray[np.float64] | None = None


class Records:
    """The kept runs, by data set."""

    def __init__(self) -> None:
        self.of = {
            data: Record(ROOT / "benchmarks" / "results" / name, Path(), 1) for data, name in RECORDS.items()
        }

    def figures(self, data: str, arm: Arm) -> Figures | None:
        """Read one side of a comparison; None if no run of it is recorded."""
        record = self.of[data]
        rate = record.rate(arm.study, STUDIES[arm.study]) if arm.rate == TUNED else arm.rate
        lines = [line for line in record.lines.values() if matches(line, [arm.study, arm.variant, rate])]
        if not lines:
            return None
        means = (100 * statistics.fmean(column) for column in zip(*(values(line, arm) for line in lines)))
        by_class = (
            100 * statistics.fmean(line["extra"].get(f"{key} ± by class", 0.0) for line in lines)
            for key in arm.keys or ("Recall@1", "MAP@R")
        )
        return Figures(
            len(lines), tuple(means), tuple(by_class), mean_sums([line.get("classes") for line in lines])
        )

    def spread(self, data: str, metric: str, length: str = "") -> Spread | None:
        """Estimate the spread of runs that differ in the seed alone, in points of a metric.

        Short runs spread more than long ones: only settings whose variant ends with `length` count.
        """
        settings: dict[str, list[float]] = {}
        for line in self.of[data].lines.values():
            study, variant, rate, _ = json.loads(line["run"])
            if variant.endswith(length):
                settings.setdefault(json.dumps([study, variant, rate]), []).append(100 * line["test"][metric])
        return pooled(list(settings.values()))


def matches(line: dict[str, Any], setting: list[str | None]) -> bool:
    """Tell whether a run is one of a setting's, whatever its seed."""
    return bool(json.loads(line["run"])[:3] == setting)


def mean_sums(runs: list[dict[str, Any] | None]) -> npt.NDArray[np.float64] | None:
    """Average the sums of each test class over runs."""
    rows = []
    for sums in runs:
        if sums is None:
            return None
        rows.append([*(100 * np.array(sums[name]) for name in CLASS_METRICS), sums["queries"]])
    return np.mean(np.array(rows, dtype=np.float64), axis=0)


def values(line: dict[str, Any], arm: Arm) -> tuple[float, float]:
    """Return a run's Recall@1 and MAP@R."""
    if arm.keys is None:
        return line["test"]["recall@1"], line["test"]["map@r"]
    return line["extra"][arm.keys[0]], line["extra"][arm.keys[1]]


def published(paper: str, claim: Claim) -> tuple[float, float]:
    """Look up the two published figures."""
    table = papers()[paper].tables[claim.table]
    rows = {row.label: row.published[claim.data] for row in table.rows if claim.data in row.published}
    place = table.metrics[claim.data].index("recall@1")
    return rows[claim.upper][place], rows[claim.lower][place]


def noise(upper: Figures, lower: Figures, metric: int, spread: Spread | None) -> float:
    """Halve the 95 % interval of the difference: over runs, unless the spread is None, and over test classes."""
    runs = 0.0
    if spread is not None:
        runs = spread.half_width(1) * math.sqrt(1 / upper.seeds + 1 / lower.seeds)
    return math.hypot(runs, class_noise(upper, lower, metric))


def class_noise(upper: Figures, lower: Figures, metric: int) -> float:
    """Halve the 95 % interval of the difference over test classes, by pairs of classes where both are recorded.

    With C classes, d the difference of a class's sums, n its queries, and D the difference over all N queries, the
    variance of a ratio of sums over clusters is C / (C − 1) Σ (d − D n)² / N².
    """
    if upper.classes is None or lower.classes is None:
        return math.hypot(upper.by_class[metric], lower.by_class[metric])
    queries = upper.classes[-1]
    differences = upper.classes[metric] - lower.classes[metric]
    rest = differences - differences.sum() / queries.sum() * queries
    count = len(queries)
    return 1.96 * math.sqrt(count / (count - 1) * float(np.sum(rest**2))) / float(queries.sum())


def direction(claim: Claim, difference: float, width: float) -> str:
    """Compare a measured difference with the claim."""
    if claim.level and abs(difference) <= LEVEL:
        return SAME
    if abs(difference) <= width + (LEVEL if claim.level else 0.0):
        return UNDECIDED
    return SAME if difference > 0 and not claim.level else OPPOSITE


def row(name: str, claim: Claim, compared: Compared, records: Records) -> str | None:
    """Format a comparison's row; None if a side of it isn't recorded."""
    upper, lower = (records.figures(compared.data, arm) for arm in (compared.upper, compared.lower))
    if upper is None or lower is None:
        return None
    measured, directions = [], []
    for place, metric in enumerate(METRICS):
        spread = records.spread(compared.data, metric, length_of(compared))
        one_network = dataclasses.replace(compared.upper, keys=compared.lower.keys) == compared.lower
        width = noise(upper, lower, place, None if one_network else spread)
        above, below = upper.means[place], lower.means[place]
        half = f" ±\u00a0{width:.1f}" if width else ""
        measured.append(f"{above:.1f}, {below:.1f} ({above - below:+.1f}{half})".replace("-", "−"))
        directions.append(direction(claim, above - below, width))
    by_recall, by_precision = directions
    both = by_recall if by_recall == by_precision else f"{by_recall}; MAP@R: {by_precision}"
    seeds = min(upper.seeds, lower.seeds)
    pair = ", ".join("–" if math.isnan(value) else f"{value:.1f}" for value in published(name, claim))
    cells = [
        claim.says,
        f"{pair} ({DATASETS[claim.data]})",
        f"{compared.data}, {compared.where}",
        *measured,
        both,
        "sure" if seeds >= 3 else "likely",
    ]
    if set(directions) == {UNDECIDED}:
        cells[-1] = "no"
    return f"| {' | '.join(cells)} |"


def length_of(compared: Compared) -> str:
    """Return the length of the compared runs, if the data set has two."""
    return next((length for length in (SHORT, LONG) if compared.upper.variant.endswith(length)), "")


def write_page(records: Records) -> str:
    """Write the page's text."""
    spreads = []
    for data, length in ((GLYPHS, ""), (HAN, SHORT), (HAN, LONG), (UNITS, "")):
        found = [records.spread(data, metric, length) for metric in METRICS]
        halves = [f"±\u00a0{spread.half_width_of_difference(1):.1f}" for spread in found if spread]
        spreads.append(f"{data}{', ' if length else ''}{length}: {' and '.join(halves) or 'unknown'}")
    head = HEAD.format(level=LEVEL, spreads="; ".join(spreads))
    lines = ["# What the papers claim, and what is measured here", "", *map(fill, head.splitlines())]
    for paper in PAPERS:
        lines += ["", f"## {papers()[paper.name].title}", ""]
        lines += [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
        for claim in paper.claims:
            found_rows = [row(paper.name, claim, compared, records) for compared in claim.measured]
            lines += [line for line in found_rows if line is not None]
        lines.append("")
        lines += [fill(f"- **Explained.** {sentence}") for sentence in paper.explained]
        lines += [fill(f"- **Open.** {sentence}") for sentence in paper.open]
    return "\n".join(lines).rstrip() + "\n"


def fill(text: str) -> str:
    """Break a paragraph or an item of a list into lines."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def main() -> None:
    """Write the page."""
    PAGE.write_text(write_page(Records()), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

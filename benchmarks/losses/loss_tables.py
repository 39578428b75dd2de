"""The tables of losses in docs/guide/han-characters.md and docs/guide/pictures.md, from the recorded runs.

    python benchmarks/losses/loss_tables.py        # rewrites both tables

A row is the mean of a variant's runs; ± is half its 95 % interval over runs, whose spread is that of all settings with
several seeds, and over test classes.
"""

from __future__ import annotations

import math
from pathlib import Path

from claim import HAN, UNITS, Arm
from paper_claims import LONG
from papers_page import METRICS, ROOT, Records

GUIDE = ROOT / "docs" / "guide"
HEAD = "| loss | Recall@1 | MAP@R | seeds |\n|---|---|---|---|\n"

ON_HAN = {
    "NormSoftmax, T = 0.1": Arm("norm-softmax", LONG),
    "MemVir (2, 100) with NormSoftmax, T = 0.1": Arm("memvir", LONG),
    "Instance Cross Entropy, s = 16": Arm("ice", LONG),
    "SupCon of pytorch-metric-learning, T = 0.1": Arm("sup-con", LONG),
    "Ranked List Loss": Arm("ranked-list", LONG),
    "Heated-Up Softmax, α = 16, then 4": Arm("heated-up", LONG),
    "the same, α = 16 to the end": Arm("heating", "alpha 16"),
    "the same, α = 4 from the start": Arm("heating", "alpha 4"),
    "Proxy-Anchor": Arm("proxy-anchor", LONG),
}
ON_UNITS = {
    "Ranked List Loss, m = 0.4": Arm("pretrained-rll-margin", "m = 0.4"),
    "Ranked List Loss, m = 1.2": Arm("pretrained-rll-margin", "m = 1.2"),
    "Ranked List Loss, m = 0": Arm("pretrained-rll-margin", "m = 0.0"),
    "Ranked List Loss, m = 0.4, 128 numbers": Arm("pretrained-rll-levels", "H"),
    "Ranked List Loss, m = 0.4, three levels of 128 numbers": Arm("pretrained-rll-levels", "L, M and H"),
    **{
        f"{label}, T = {temperature}": Arm("pretrained-memvir", f"{variant}, T = {temperature}")
        for label, variant in (
            ("NormSoftmax", "base"),
            ("MemVir (2, 20) with NormSoftmax", "MemVir (2, 20)"),
        )
        for temperature in (0.1, 0.05)
    },
    "Heated-Up Softmax, α = 16, then 4": Arm("pretrained-heating", "alpha 16, then 4"),
    "the same, α = 16 to the end": Arm("pretrained-heating", "alpha 16"),
    "the same, α = 4 from the start": Arm("pretrained-heating", "alpha 4"),
    **{
        f"Instance Cross Entropy, s = {scale}": Arm("pretrained-ice-scale", f"s = {scale}")
        for scale in (16, 32, 64, 80)
    },
    "SupCon of pytorch-metric-learning, T = 0.1": Arm("pretrained-sup-con", "T = 0.1"),
    "Proxy-Anchor": Arm("pretrained-proxy-anchor", "alpha = 32"),
}
# Runs of one data set have one spread; on Han characters, those of one length.
PAGES = {"han-characters.md": (HAN, LONG, ON_HAN), "pictures.md": (UNITS, "", ON_UNITS)}


def rows(records: Records, data: str, length: str, arms: dict[str, Arm]) -> str:
    """Format a table's rows."""
    lines = []
    for label, arm in arms.items():
        figures = records.figures(data, arm)
        assert figures is not None, f"no run of {arm} is recorded"
        cells = []
        for place, metric in enumerate(METRICS):
            spread = records.spread(data, metric, length)
            assert spread is not None
            half = math.hypot(spread.half_width(figures.seeds), figures.by_class[place])
            cells.append(f"{figures.means[place]:.1f} ± {half:.1f}")
        lines.append(f"| {label} | {' | '.join(cells)} | {figures.seeds} |\n")
    return "".join(lines)


def with_table(page: Path, records: Records) -> str:
    """Return a page's text with a new table."""
    before, rest = page.read_text(encoding="utf-8").split(HEAD)
    after = rest[rest.index("\n\n") + 1 :]
    return before + HEAD + rows(records, *PAGES[page.name]) + after


def main() -> None:
    """Rewrite the tables."""
    records = Records()
    for name in PAGES:
        page = GUIDE / name
        page.write_text(with_table(page, records), encoding="utf-8")
        print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

"""Test the papers' claims by an experiment per claim, using learning rates chosen on held-out
classes.

    python benchmarks/losses/bench_claims.py RECORD.jsonl RUNS [--data han | units]
        [--study NAME ...] [--variant LABEL ...] [--seeds 3] [--processes 2] [--print]

`claims.py` defines the studies on glyphs, `han.py` on Han characters, and `pretrained.py` on
pictures. A study uses the learning rate with the best MAP@R on the held-out classes, chosen using a
single seed and variant. Then all variants, or those in ``--variant``, train with all seeds.
Finished runs are appended to RECORD: to resume after an interruption, repeat the command. To print
the tables of recorded runs only, use ``--print``. A run uses a single thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

import claims
import han
import pretrained
from bench_learning import interval
from claims import Study
from class_intervals import sums_by_class
from rich.console import Console

from dml_core import registry
from dml_train import load_recipe
from dml_train.measure.intervals import pool_spread
from dml_train.run_folder import RunFolder
from dml_train.studies.runs import Job, Outcome, run_all

FIGURES = ("recall@1", "map@r")
UNITS = ("cosine", "ms a step", "MiB", ": s")  # values with these in the title aren't percentages
DATA = {"glyphs": claims.STUDIES, "han": han.STUDIES, "units": pretrained.STUDIES}
STUDIES = claims.STUDIES | han.STUDIES | pretrained.STUDIES


class Record:
    """Record of finished runs, a line of JSON per run."""

    def __init__(self, path: Path, runs: Path, processes: int) -> None:
        self.path, self.runs, self.processes = path, runs, processes
        self.lines: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in map(json.loads, path.read_text().splitlines()):
                self.lines[line["run"]] = line

    def find(self, study: str, variant: str, rate: str, seed: int) -> dict[str, Any] | None:
        """Return a finished run, or None."""
        return self.lines.get(json.dumps([study, variant, rate, seed]))

    def run(self, wanted: list[tuple[str, str, str, int]]) -> None:
        """Train the runs that are missing."""
        jobs = []
        for study, variant, rate, seed in wanted:
            if self.find(study, variant, rate, seed) is None:
                jobs.append(self.job(study, variant, rate, seed))
        console = Console(quiet=True)
        run_all(
            jobs, processes=self.processes, registry=registry(), console=console, on_end=self.add
        )

    def job(self, study: str, variant: str, rate: str, seed: int) -> Job:
        """Return the job that trains a study's variant."""
        table = STUDIES[study]
        overrides = [
            *table.set,
            *(rate.split(" ; ") if rate else []),
            *table.variants[variant],
            f"training.seed={seed}",
        ]
        overrides += [
            "evaluation.every=1",
            "evaluation.unit=step",
            "logging.loggers=[{name='jsonl'}]",
        ]
        length = load_recipe(table.recipe, overrides).training
        # Measure the held-out classes only when training ends, so that the last weights are used as
        # the best.
        if length.epochs:
            overrides += [f"evaluation.every={length.epochs}", "evaluation.unit=epoch"]
        else:
            overrides.append(f"evaluation.every={length.steps}")
        name = json.dumps([study, variant, rate, seed])
        folder = self.runs / "".join(
            c if c.isalnum() else "-" for c in f"{study}-{variant}-{rate}-{seed}"
        )
        return Job(name, load_recipe(table.recipe, overrides), folder)

    def add(self, outcome: Outcome) -> None:
        """Append a finished run."""
        if outcome.fault is not None:
            print(f"{outcome.job.name}: {outcome.fault}", flush=True)
            return
        folder, study = RunFolder(outcome.job.folder), STUDIES[json.loads(outcome.job.name)[0]]
        logged = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
        validation = next(line for line in reversed(logged) if "validation/map@r" in line)
        test = outcome.metrics()
        line = {
            "run": outcome.job.name,
            "validation": {key: validation[f"validation/{key}"] for key in FIGURES},
            "test": {key: test[key] for key in FIGURES},
            "extra": study.after(folder, outcome.job.recipe),
            "seconds": outcome.seconds(),
        }
        if (sums := sums_by_class(folder)) is not None:
            line["classes"] = sums
        self.lines[line["run"]] = line
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(
            f"{outcome.job.name}: {line['test']['recall@1']:.4f} {line['seconds'] or 0:.0f} s",
            flush=True,
        )

    def rate(self, name: str, study: Study) -> str | None:
        """Return the rate with the best MAP@R on the held-out classes; None until all are
        measured.
        """
        if not study.rates:
            return ""
        found = {rate: self.find(name, study.rate_of, rate, 0) for rate in study.rates}
        if any(line is None for line in found.values()):
            return None
        return max(study.rates, key=lambda rate: found[rate]["validation"]["map@r"])  # type: ignore[index]


def print_study(record: Record, name: str, study: Study, seeds: int) -> None:
    """Print a study's table."""
    if (rate := record.rate(name, study)) is None:
        return
    rows = {
        label: [line for seed in range(seeds) if (line := record.find(name, label, rate, seed))]
        for label in study.variants
    }
    rows = {label: lines for label, lines in rows.items() if lines}
    if not rows:
        return
    print(f"\n## {study.title}\n\nThe paper: {study.claim}. Recipe `{study.recipe}`"
          f"{f', chosen on held-out classes: `{rate}`' if rate else ''}.\n")  # fmt: skip
    extras = list(next(iter(rows.values()))[0]["extra"]) or list(
        list(rows.values())[-1][0]["extra"]
    )
    columns = {
        "held-out MAP@R": lambda line: line["validation"]["map@r"],
        "Recall@1": lambda line: line["test"]["recall@1"],
        "MAP@R": lambda line: line["test"]["map@r"],
        **{key: (lambda line, key=key: line["extra"].get(key)) for key in extras},
    }
    less = f"MAP@R less {study.rate_of}, same seeds"
    print(
        f"| variant | {' | '.join([*columns, less])} | seeds | s |\n|{'---|' * (len(columns) + 4)}"
    )
    spreads = {
        title: pool_spread(
            [[get(line) for line in lines] for lines in rows.values() if get(lines[0]) is not None]
        )
        for title, get in columns.items()
    }
    for label, lines in rows.items():
        cells = []
        for title, get in columns.items():
            values = [get(line) for line in lines]
            if values[0] is None:
                cells.append("")
                continue
            percent = not any(unit in title for unit in UNITS)
            spread, factor = spreads[title], 100.0 if percent else 1.0
            half = f" ± {factor * spread.half_width(len(values)):.1f}" if spread and percent else ""
            cells.append(
                f"{factor * statistics.fmean(values):.{3 if 'cosine' in title else 1}f}{half}"
            )
        pairs = zip(lines, rows.get(study.rate_of, []), strict=False)  # either may have more seeds
        differences = [100 * (a["test"]["map@r"] - b["test"]["map@r"]) for a, b in pairs]
        # The Student interval over seeds.
        cells.append(
            "" if label == study.rate_of or len(differences) < 2 else interval(differences)
        )
        seconds = statistics.fmean(line["seconds"] or 0 for line in lines)
        print(f"| {label} | {' | '.join(cells)} | {len(lines)} | {seconds:.0f} |")


def main() -> None:
    """Train the runs that the record lacks, then print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--data", choices=list(DATA), default="glyphs")
    parser.add_argument("--study", action="append", choices=list(STUDIES))
    parser.add_argument("--variant", action="append", metavar="LABEL")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--print", action="store_true", dest="only_print")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = {name: STUDIES[name] for name in arguments.study or DATA[arguments.data]}
    record = Record(arguments.record, arguments.runs, arguments.processes)
    if not arguments.only_print:
        record.run(
            [
                (name, study.rate_of, rate, 0)
                for name, study in chosen.items()
                for rate in study.rates
            ]
        )
        for seed in range(arguments.seeds):
            rates = {name: record.rate(name, study) for name, study in chosen.items()}
            record.run(
                [
                    (name, label, rate, seed)
                    for name, study in chosen.items()
                    if (rate := rates[name]) is not None
                    for label in study.variants
                    if arguments.variant is None or label in arguments.variant
                ]
            )
    for name, study in chosen.items():
        print_study(record, name, study, arguments.seeds)


if __name__ == "__main__":
    main()

"""The demo: train on rendered characters, and compare the embedding with raw pixels on unseen
characters.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from dml_core import DmlError, Registry, UnknownName
from dml_core import registry as installed
from dml_train.files import write_json
from dml_train.measure.evaluate import Embedded, build_evaluator, evaluate, make_evaluator
from dml_train.recipe.loading import load_recipe
from dml_train.report import write_report
from dml_train.run_folder import RunFolder
from dml_train.training.baselines import Baselines
from dml_train.training.run import train

# The metrics in the table, with column titles.
_COLUMNS = {
    "recall@1": "Recall\n@1",
    "recall@10": "Recall\n@10",
    "recall@100": "Recall\n@100",
    "r_precision": "R-\nprecision",
    "map@r": "MAP@R",
    "nmi": "NMI",
}


def run_demo(
    out: Path | str,
    *,
    resume: bool = False,
    overrides: tuple[str, ...] = (),
    registry: Registry | None = None,
    console: Console | None = None,
) -> None:
    """Train with the bundled recipe ``demo``, and compare four embeddings of images of unseen
    classes.

    This function prints a table of metrics for raw pixels, the untrained network, the trained
    network, and binary codes (the signs of the embedding). It also saves them in the run's folder,
    in ``comparison.json`` and in a report. Raise a `DmlError` if `out` isn't empty, or a package
    that the recipe needs isn't installed.

    Args:
        out: the run's folder; must be new or empty, unless `resume` is true.
        resume: resume an interrupted demo in `out`, or start if there is none.
        overrides: changes to the recipe, for example ``"training.steps=100"``.
        registry: provides the components; default: all installed components.
        console: prints the table; default: the standard output. Progress goes to the error stream.
    """
    out, registry, console = Path(out), registry or installed(), console or Console()
    if not resume:
        RunFolder.check_new(out)
    # Build everything first, so that a missing package fails before training.
    try:
        recipe = load_recipe("demo", overrides, registry)
        exact = build_evaluator(recipe, registry)
        table = {"name": "hamming", "metrics": recipe.evaluation.component()["metrics"]}
        hamming = make_evaluator(table, registry, recipe.training.seed)
    except UnknownName as error:
        raise DmlError(
            f"{error}\nThe demo needs dml-losses and dml-eval-rs: pip install 'dml-train[all]'"
        ) from error

    start = time.perf_counter()
    folder = train(recipe, out, resume=resume, registry=registry, console=Console(stderr=True))
    seconds = time.perf_counter() - start

    embedded = Embedded.read(folder)
    dim = embedded.embeddings.shape[1]
    comparison = {
        **Baselines.read(folder).metrics,
        "trained network": {
            **folder.read_evaluation(),
            "bytes_per_item": exact.bytes_per_item(dim),
        },
        f"its {dim}-bit codes": {
            **evaluate(hamming, embedded).to_dict(),
            "bytes_per_item": hamming.bytes_per_item(dim),
        },
    }
    write_json(folder.comparison, comparison)
    report = write_report(folder.path)
    images, classes = len(embedded.labels), len(np.unique(embedded.labels))
    title = f"{images:,} images of {classes:,} characters that training never saw"
    console.print(comparison_table(comparison, title))
    done = f"trained, embedded and measured in {seconds:.0f} s; report: {report}"
    console.print(done, markup=False, highlight=False, soft_wrap=True)


def comparison_table(comparison: Mapping[str, Mapping[str, Any]], title: str) -> Table:
    """Build a table of metrics, up to 80 columns wide.

    Args:
        comparison: name → the metrics of an evaluation, and ``bytes_per_item``.
        title: title above the table.
    """
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    table.add_column("", no_wrap=True)
    for column in (*_COLUMNS.values(), "bytes\nan item"):
        table.add_column(column, justify="right", vertical="bottom", no_wrap=True)
    for name, metrics in comparison.items():
        shares = [f"{metrics[metric]:.3f}" for metric in _COLUMNS]
        table.add_row(name, *shares, f"{metrics['bytes_per_item']:,}")
    return table

"""The demo: train on rendered characters, and compare the embedding with raw pixels on unseen characters."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.table import Table

from dml_core import Dataset, DmlError, Evaluator, Registry, UnknownName
from dml_core import registry as installed
from dml_train.files import read_array, write_json
from dml_train.measure.embed import embed
from dml_train.measure.evaluate import Embedded, build_evaluator, evaluate
from dml_train.progress import stage
from dml_train.recipe.loading import load_recipe
from dml_train.recipe.tables import Recipe
from dml_train.report import COMPARISON, write_report
from dml_train.run_folder import RunFolder
from dml_train.training.build import build_model, find_device
from dml_train.training.run import train

RECALL_AT = (1, 10, 100)


def run_demo(
    out: Path | str,
    *,
    overrides: tuple[str, ...] = (),
    registry: Registry | None = None,
    console: Console | None = None,
) -> None:
    """Train with the bundled recipe ``demo``, and compare four descriptions of the unseen classes' images.

    It prints one table: raw pixels, the untrained network, the trained one, and its embeddings as binary codes (their
    signs). The run's folder holds the same metrics in ``comparison.json``, and a report.

    Args:
        out: the run's folder; must be new or empty.
        overrides: changes of the recipe, ``"training.steps=100"``.
        registry: provides the components; default: all installed ones.
        console: prints the table; default: the standard output. Progress goes to the error stream.

    Raises:
        DmlError: if `out` isn't empty, or a package that the recipe needs isn't installed.
    """
    out, registry, console = Path(out), registry or installed(), console or Console()
    progress = Console(stderr=True)
    RunFolder.refuse_existing(out)
    # Build everything first, so that a missing package fails before training.
    try:
        recipe = load_recipe("demo", overrides, registry)
        context = {"seed": recipe.training.seed}
        exact = build_evaluator(recipe, registry)
        hamming: Evaluator = registry.build("evaluators", {"name": "hamming", "nmi": True}, context)
    except UnknownName as error:
        raise DmlError(
            f"{error}\nThe demo needs dml-losses and dml-eval-rs: pip install 'dml-train[all]'"
        ) from error

    start = time.perf_counter()
    folder = train(recipe, out, registry=registry, console=progress)
    seconds = time.perf_counter() - start

    dataset: Dataset = registry.build("datasets", recipe.dataset, context)
    embeddings = read_array(folder.embeddings())
    labels = dataset.test.labels
    dim = embeddings.shape[1]
    pixels = _pixels(dataset)
    comparison: dict[str, dict[str, Any]] = {}
    with stage(progress, "compare", 4) as show:
        comparison["raw pixels"] = _measure(exact, pixels, labels) | {"bytes_per_item": pixels.shape[1]}
        show(1, "")
        comparison["untrained network"] = _measure(exact, _untrained(recipe, dataset, registry), labels) | {
            "bytes_per_item": exact.bytes_per_item(dim)
        }
        show(2, "")
        comparison["trained network"] = json.loads(folder.evaluation.read_text()) | {
            "bytes_per_item": exact.bytes_per_item(dim)
        }
        show(3, "")
        comparison[f"its {dim}-bit codes"] = _measure(hamming, embeddings, labels) | {
            "bytes_per_item": hamming.bytes_per_item(dim)
        }
        show(4, "")
    write_json(folder.path / COMPARISON, comparison)
    report = write_report(folder.path)

    test = dataset.test
    console.print(
        comparison_table(
            comparison,
            f"{len(test):,} images of {len(test.class_names):,} characters that training never saw",
        )
    )
    console.print(
        f"trained, embedded and measured in {seconds:.0f} s; report: {report}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _pixels(dataset: Dataset) -> npt.NDArray[np.float32]:
    """Return the test images as vectors, (N, channels · height · width)."""
    images = dataset.test.load(np.arange(len(dataset.test)))
    pixels: npt.NDArray[np.float32] = images.flatten(1).numpy()
    return pixels


def _untrained(recipe: Recipe, dataset: Dataset, registry: Registry) -> npt.NDArray[np.float32]:
    """Embed the test images with the initial weights, (N, D)."""
    device = find_device(recipe.training.device)
    return embed(build_model(recipe, dataset.in_channels, registry, device), dataset.test, device=device)


def _measure(
    evaluator: Evaluator, embeddings: npt.NDArray[Any], labels: npt.NDArray[np.int64]
) -> dict[str, Any]:
    return evaluate(evaluator, Embedded(embeddings, labels)).to_dict()


def comparison_table(comparison: Mapping[str, Mapping[str, Any]], title: str) -> Table:
    """Build a table of the metrics, at most 80 columns wide.

    Args:
        comparison: name → ``to_dict()`` of an evaluation with NMI, and ``bytes_per_item``.
        title: above the table.
    """
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    table.add_column("", no_wrap=True)
    for name in (*(f"Recall\n@{k}" for k in RECALL_AT), "MAP@R", "R-\nprecision", "NMI", "bytes\nan item"):
        table.add_column(name, justify="right", vertical="bottom", no_wrap=True)
    for name, metrics in comparison.items():
        shares = [
            *(metrics["recall"][str(k)] for k in RECALL_AT),
            metrics["map_at_r"],
            metrics["r_precision"],
        ]
        table.add_row(
            name, *(f"{share:.3f}" for share in (*shares, metrics["nmi"])), f"{metrics['bytes_per_item']:,}"
        )
    return table

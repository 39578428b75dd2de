"""`dml eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dml_core import DmlError, Registry
from dml_train.commands.options import CONSOLE, FILE, refuse_existing
from dml_train.files import read_array, write_json
from dml_train.measure.evaluate import Embedded, evaluate
from dml_train.recipe.loading import assign
from dml_train.run_folder import RunFolder
from dml_train.training.run import read_recipe, reopen


@click.command("eval")
@click.argument("source", metavar="RUN|EMBEDDINGS.npy", type=click.Path(path_type=Path))
@click.argument("labels", metavar="[LABELS.npy]", type=FILE, required=False)
@click.option("--gallery", type=FILE, help="Gallery embeddings (.npy); default: the queries themselves.")
@click.option("--gallery-labels", type=FILE, help="Labels of the gallery (.npy).")
@click.option(
    "--evaluator", metavar="NAME", help="One of those that 'dml plugins' lists; default: the run's, or exact."
)
@click.option(
    "--set",
    "assignments",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set an option of the evaluator (recall_at=[1,5]); repeatable.",
)
@click.option("--out", type=FILE, help="Also write the metrics to a new JSON file.")
@click.pass_obj
def evaluate_command(
    registry: Registry,
    source: Path,
    labels: Path | None,
    gallery: Path | None,
    gallery_labels: Path | None,
    evaluator: str | None,
    assignments: tuple[str, ...],
    out: Path | None,
) -> None:
    """Evaluate a run's test split, or embeddings with labels."""
    table: dict[str, Any] = {"name": evaluator or "exact"}
    seed = 0
    if source.is_dir():
        if labels or gallery or gallery_labels:
            raise DmlError(
                f"{source} is a run's folder, which has its own labels and gallery; give no others"
            )
        folder = RunFolder.open(source)
        recipe = read_recipe(folder, registry)
        seed = recipe.training.seed
        if evaluator in (None, recipe.evaluation.name):
            table = recipe.evaluation.component()
        embedded = (
            Embedded.read(folder)
            if folder.evaluation.is_file() and folder.embeddings().is_file()
            else reopen(source, registry)[1].embed_test(CONSOLE)
        )
    else:
        if labels is None:
            raise DmlError(f"{source} is not a run's folder; to evaluate embeddings, give their labels, too")
        if (gallery is None) != (gallery_labels is None):
            raise DmlError("--gallery and --gallery-labels belong together; only one of them was given")
        embedded = _read(source, labels, gallery, gallery_labels)
    for assignment in assignments:
        assign(table, assignment)
    refuse_existing(out)
    result = evaluate(registry.build("evaluators", table, {"seed": seed}), embedded)
    click.echo(str(result))
    if out:
        write_json(out, result.to_dict())


def _read(queries: Path, labels: Path, gallery: Path | None, gallery_labels: Path | None) -> Embedded:
    return Embedded(
        read_array(queries),
        read_array(labels),
        read_array(gallery) if gallery else None,
        read_array(gallery_labels) if gallery_labels else None,
    )

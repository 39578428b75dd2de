"""`dml embed`."""

from __future__ import annotations

from pathlib import Path

import click

from dml_core import DmlError, Registry
from dml_train.commands.options import CONSOLE, FILE, FOLDER, refuse_existing
from dml_train.embedding import pack_codes
from dml_train.run_folder import write_array
from dml_train.training import reopen


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--split", type=click.Choice(["test", "gallery", "train"]), default="test", show_default=True)
@click.option("--out", type=FILE, required=True, help="A new .npy file: (N, dim) float32.")
@click.option("--labels", type=FILE, help="Also write the labels to a new .npy file: (N,) int64.")
@click.option(
    "--codes", is_flag=True, help="Write binary codes, a bit a dimension: (N, ceil(dim / 8)) uint8."
)
@click.pass_obj
def embed(registry: Registry, run: Path, split: str, out: Path, labels: Path | None, codes: bool) -> None:
    """Embed a split of a run's data set with the run's newest weights."""
    refuse_existing(out, labels)
    _, experiment = reopen(run, registry)
    part = getattr(experiment.dataset, split)
    if part is None:
        name = experiment.recipe.dataset["name"]
        raise DmlError(
            f"the data set {name!r} has no gallery of its own: its test split is searched in itself"
        )
    embeddings = experiment.embed(part, CONSOLE)
    write_array(out, pack_codes(embeddings) if codes else embeddings)
    if labels:
        write_array(labels, part.labels)

"""`dml export`."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click

from dml_core import DmlError, Registry
from dml_train.commands.options import FILE, FOLDER, STEP, check_new


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--to", "form", type=click.Choice(["onnx", "torch-export"]), required=True, help="The format.")
@click.option("--out", type=FILE, required=True, help="A new file: .onnx, or .pt2 for torch-export.")
@STEP
@click.pass_obj
def export(registry: Registry, run: Path, form: str, out: Path, step: int | None) -> None:
    """Export a run's network to ONNX or torch.export.

    Check that the exported network computes the same embeddings of image files, and write two files to prepare images
    for the network: OUT.json describes the steps, and prepare.py runs the steps with only Pillow and numpy. ONNX needs
    dml-train[onnx].
    """
    from dml_train.trained.export import EXPORTERS, Format
    from dml_train.trained.export import export as write
    from dml_train.trained.model import open_model

    suffix = EXPORTERS[cast("Format", form)].suffix
    if out.suffix != suffix:
        raise DmlError(f"--out is {out}; expected a name that ends in {suffix}")
    check_new(out, out.with_name(f"{out.name}.json"))
    difference = write(open_model(run, registry, step=step), cast("Format", form), out)
    click.echo(
        f"{out}: embeddings of image files differ from dml embed's by at most {difference:.1e} in cosine"
    )

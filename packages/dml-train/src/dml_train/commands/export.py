"""`dml export`."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click

from dml_core import DmlError, Registry
from dml_train.commands.options import FOLDER, STEP, check_new


@click.command()
@click.argument("run", type=FOLDER)
@click.option(
    "--to",
    "--form",
    "form",
    type=click.Choice(["onnx", "torch-export", "hub", "sentence-transformers"]),
    required=True,
    help="The format; hub: a folder for the Hugging Face Hub.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="A new file: .onnx, or .pt2 for torch-export; or a new folder.",
)
@STEP
@click.pass_obj
def export(registry: Registry, run: Path, form: str, out: Path, step: int | None) -> None:
    """Export a network to ONNX, torch.export or the Hugging Face Hub.

    Check that the exported network computes the same embeddings of image files, and write two files
    to prepare images for the network: OUT.json describes the steps, and prepare.py runs the steps
    with only Pillow and numpy. ONNX needs dml-train[onnx].

    With --to sentence-transformers: write a folder that SentenceTransformer(FOLDER) loads, for
    networks of timm.

    With --to hub: write weights, config.json and a model card, which 'hf upload' sends and
    dml_train.open_model opens.
    """
    from dml_train.trained.export import EXPORTERS, Format
    from dml_train.trained.export import export as write
    from dml_train.trained.model import open_model

    if form in EXPORTERS:
        suffix = EXPORTERS[form].suffix
        if out.suffix != suffix:
            raise DmlError(f"--out is {out}; expected a name that ends in {suffix}")
        check_new(out.with_name(f"{out.name}.json"))
    check_new(out)
    difference = write(open_model(run, registry, step=step), cast("Format", form), out, registry)
    click.echo(
        f"{out}: embeddings of image files differ from dml embed's by at most {difference:.1e} in "
        "cosine"
    )

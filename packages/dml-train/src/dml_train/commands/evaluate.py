"""`dml eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dml_core import DmlError, Evaluation, Registry
from dml_train.commands.options import FILE, ON_BAD_IMAGE, STEP, check_new, error_console, printable

if TYPE_CHECKING:
    from dml_train.measure.evaluate import Embedded


@click.command("eval")
@click.argument("source", metavar="RUN|EMBEDDINGS.npy", type=click.Path(path_type=Path))
@click.argument(
    "labels", metavar="[FOLDER|LABELS.npy]", type=click.Path(path_type=Path), required=False
)
@click.option(
    "--gallery", type=FILE, help="Gallery embeddings (.npy); default: the queries themselves."
)
@click.option("--gallery-labels", type=FILE, help="Labels of the gallery (.npy).")
@click.option(
    "--groups",
    type=FILE,
    help="Groups (.npy), e.g. cameras; items with equal label and group don't match.",
)
@click.option("--gallery-groups", type=FILE, help="Groups of the gallery (.npy).")
@click.option(
    "--evaluator",
    metavar="NAME",
    help="A name that 'dml plugins' lists; default: as in the run, or exact.",
)
@click.option(
    "--set",
    "assignments",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set an option of the evaluator ('evaluation.metrics=[\"recall@1\"]'); repeatable.",
)
@click.option(
    "--level",
    "levels",
    metavar="NAME",
    multiple=True,
    help="Measure only this level of a run with several levels (backbone.levels); repeatable.",
)
@click.option(
    "--prefix",
    "prefixes",
    type=click.IntRange(min=1),
    multiple=True,
    help="Measure only the first N numbers of a run's embedding; repeatable.",
)
@click.option(
    "--flip", is_flag=True, help="Average the embeddings of an image and the mirror image."
)
@click.option(
    "--whiten",
    type=click.IntRange(min=1),
    metavar="N",
    help=(
        "Learn a PCA whitening to N numbers from the training images; embed, search and export "
        "then apply it, too."
    ),
)
@click.option(
    "--expand", is_flag=True, help="Average queries with their nearest items (--set expand.k=5)."
)
@click.option(
    "--rerank", is_flag=True, help="Re-rank by k-reciprocal neighbours (--set rerank.k1=10)."
)
@ON_BAD_IMAGE
@STEP
@click.option("--out", type=FILE, help="Also write the metrics to a new JSON file.")
@click.pass_obj
def evaluate_command(
    registry: Registry,
    source: Path,
    labels: Path | None,
    gallery: Path | None,
    gallery_labels: Path | None,
    groups: Path | None,
    gallery_groups: Path | None,
    evaluator: str | None,
    assignments: tuple[str, ...],
    levels: tuple[str, ...],
    prefixes: tuple[int, ...],
    flip: bool,
    whiten: int | None,
    expand: bool,
    rerank: bool,
    on_bad_image: str,
    step: int | None,
    out: Path | None,
) -> None:
    """Evaluate a run on any images, or evaluate embeddings.

    With only RUN: evaluate the test split. With FOLDER (FOLDER/CLASS/IMAGE): evaluate RUN on these
    images; each image is a query that searches all others. With EMBEDDINGS.npy and LABELS.npy:
    evaluate these arrays.

    The results of --flip, --whiten, --expand and --rerank on the test split are also rows of the
    run's next report.
    """
    from dml_train.files import write_json
    from dml_train.recipe.loading import assign

    document: dict[str, Any] = {"evaluation": {}, "expand": {}, "rerank": {}}
    for assignment in assignments:
        assign(document, assignment)
    options, *steps = (document.pop(name) for name in ("evaluation", "expand", "rerank"))
    expansion, reranking = (
        table if table or asked else None for table, asked in zip(steps, (expand, rerank))
    )
    if document or not all(isinstance(table, dict) for table in (options, *steps)):
        raise DmlError(
            f"can't set {next(iter(document), 'evaluation')!r}: dml eval changes only keys of the "
            "tables [evaluation], "
            '[expand] and [rerank], for example evaluation.metrics=["recall@1", "recall@5"]'
        )
    named = options.pop("name", None)
    if evaluator and named and evaluator != named:
        raise DmlError(
            f"--evaluator is {evaluator!r}, evaluation.name is {named!r}; expected one of them"
        )
    evaluator = evaluator or named
    check_new(out)
    if not source.exists():
        raise DmlError(
            f"{source} doesn't exist; expected a run's folder, or embeddings (.npy) and their "
            "labels"
        )
    if labels is not None and not labels.exists():
        raise DmlError(
            f"{labels} doesn't exist; expected "
            f"{'a folder of images' if source.is_dir() else 'labels (.npy)'}"
        )
    results: dict[int | None, Evaluation]
    if source.is_dir():
        if gallery or gallery_labels or groups or gallery_groups:
            raise DmlError(
                f"{source} is a run's folder; omit --gallery, --gallery-labels, --groups and "
                "--gallery-groups"
            )
        from dml_train.measure.evaluate import evaluate_selected
        from dml_train.trained.evaluation import choose_evaluator, embed_test, whiten_embedded

        recipe, measure = choose_evaluator(source, evaluator, options, registry)
        if labels is None:
            embedded = embed_test(source, step, registry, error_console(), flip=flip)
        else:
            embedded = _embed_folder(registry, source, labels, step, on_bad_image == "skip", flip)
        if whiten is not None:
            embedded = whiten_embedded(
                embedded, source, whiten, levels, step, registry, error_console()
            )
        results = {
            n: evaluate_selected(measure, embedded, recipe, levels, n, expansion, reranking)
            for n in prefixes or (None,)
        }
        asked = {"flip": flip, f"whiten {whiten}": whiten, "expand": expansion, "rerank": reranking}
        steps_taken = [name for name, value in asked.items() if value not in (None, False)]
        if steps_taken and labels is None and step is None and not levels and not prefixes:
            size = measure.bytes_per_item(embedded.embeddings.shape[1])
            _add_to_report(
                source, " + ".join(steps_taken), {**results[None].to_dict(), "bytes_per_item": size}
            )
    else:
        for name, value, reason in (
            ("--step", step, "an array has no checkpoints"),
            ("--level", levels, "the levels are unknown"),
            ("--prefix", prefixes, "slice the array instead, embeddings[:, :32]"),
            ("--flip", flip, "there are no images to flip"),
            ("--whiten", whiten, "there are no training images"),
            ("--expand", expansion is not None, "use dml_eval_rs.expand_queries"),
            ("--rerank", reranking is not None, "use dml_eval_rs.rerank"),
        ):
            if value:
                raise DmlError(f"{source} is not a run's folder: {reason}; omit {name}")
        if labels is None or labels.is_dir():
            raise DmlError(
                f"{source} is not a run's folder; to evaluate embeddings, also give labels"
            )
        from dml_train.files import read_array
        from dml_train.trained.evaluation import evaluate_embeddings

        result = evaluate_embeddings(
            read_array(source),
            _read_labels(labels, groups),
            read_array(gallery) if gallery else None,
            _read_labels(gallery_labels, gallery_groups),
            evaluator=evaluator or "exact",
            options=options,
            registry=registry,
        )
        results = {None: result}
    for prefix, result in results.items():
        click.echo(str(result) if prefix is None else f"The first {prefix} numbers:\n{result}")
    if out:
        by_prefix = {str(prefix): result.to_dict() for prefix, result in results.items()}
        write_json(out, by_prefix if prefixes else by_prefix["None"])


def _read_labels(labels: Path | None, groups: Path | None) -> Any:
    """Read the labels of queries or gallery, with groups if there are any."""
    from dml_core import Labels
    from dml_train.files import read_array

    if labels is None:
        if groups is not None:
            raise DmlError(f"{groups} contains groups of a gallery; also give --gallery-labels")
        return None
    if groups is None:
        return read_array(labels)
    try:
        return Labels(read_array(labels), read_array(groups))
    except (TypeError, ValueError) as error:
        raise DmlError(f"{labels} and {groups}: {error}") from error


def _embed_folder(
    registry: Registry, run: Path, folder: Path, step: int | None, skip: bool, flip: bool
) -> Embedded:
    """Embed a folder of images with a run's weights, and report skipped images and training images
    of the run.
    """
    from dml_train.trained.evaluation import embed_classes
    from dml_train.trained.leaks import count_training_images
    from dml_train.trained.model import open_model

    model = open_model(run, registry, step=step, whitened=False)
    model.network.flips = flip
    embedded, found = embed_classes(model, folder, skip=skip, console=error_console())
    for _, reason in found.skipped:
        click.echo(f"skipped: {printable(reason)}", err=True)
    files = [folder / name for name in found.paths]
    if seen := count_training_images(model.recipe, registry, files):
        click.echo(
            f"{seen:,} of these {len(files):,} images are training images of the run: metrics on "
            "them are too high",
            err=True,
        )
    return embedded


def _add_to_report(run: Path, name: str, row: dict[str, Any]) -> None:
    """Add a row to the table that the run's next report shows, next to the trained embedding."""
    from dml_train.files import read_json, write_json
    from dml_train.run_folder import RunFolder

    path = RunFolder.open(run).comparison
    rows = read_json(path) if path.is_file() else {}
    write_json(path, {**rows, name: row})
    click.echo(f"{path}: a row for the next report: {name}", err=True)

"""Rank the labels of a run's images, or of a folder, and write a table with corrected labels.

Shapes: `N` images, `D` embedding dimension.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_core import DmlError, FileBackedSplit, Registry, Split, SuspectLabels, SuspectsEvaluator
from dml_core import registry as installed
from dml_train.data.csv_table import read_rows
from dml_train.data.file_dataset import FileDatasetFactory
from dml_train.data.inspection import read_source
from dml_train.data.parts import Parts
from dml_train.files import read_array, read_json, write_csv
from dml_train.measure.embed import groups_of
from dml_train.measure.evaluate import convert_errors
from dml_train.run_folder import RunFolder
from dml_train.trained.evaluation import embed_split
from dml_train.trained.folder import index_path
from dml_train.trained.images import ImageList, SplitName, list_folder
from dml_train.trained.model import open_model
from dml_train.trained.plan import EmbeddingPlan, embed_in_memory
from dml_train.training.build import build_dataset
from dml_train.training.run import read_recipe

K = 20  # neighbours that vote, by default


class Suspect(NamedTuple):
    """An image, and how suspicious the label is."""

    path: str  # the file or, if the data set doesn't use files, the index in the split
    label: str
    suggested: str
    score: float  # see `dml_eval_rs.suspect_labels`
    pruned: bool
    distance: float


@dataclass(frozen=True, slots=True)
class Suspects:
    """The images in order, and the neighbours' opinion on the labels."""

    paths: Sequence[str]  # (N,)
    labels: npt.NDArray[Any]  # (N,) names of classes
    found: SuspectLabels

    def ranked(self) -> Iterator[Suspect]:
        """Yield all images, most suspicious first."""
        found = self.found
        columns = self.labels, found.suggested, found.score, found.pruned, found.distance
        for item in np.argsort(-found.score, kind="stable").tolist():
            yield Suspect(self.paths[item], *(column[item].item() for column in columns))


def find_suspects(
    source: Path,
    k: int = K,
    *,
    split: SplitName = "test",
    step: int | None = None,
    model: Path | None = None,
    embeddings: Path | None = None,
    labels: Path | None = None,
    skip: bool = False,
    registry: Registry | None = None,
    console: Console | None = None,
) -> Suspects:
    """Rank the images of a run's split, or of a folder ``FOLDER/CLASS/IMAGE``, see
    `suspect_labels`.

    If the split has groups, only images of other groups vote. Raise a `DmlError` if an array
    doesn't fit the images, or k is out of range; and see `evaluate_run`.

    Args:
        source: a run's folder, or a folder of images.
        k: number of neighbours that vote.
        split, step: with a run, the images and the weights, see `embed_split`.
        model: with a folder, the run that embeds the images, unless `embeddings` is given.
        embeddings: with a folder, a .npy file (N, D); the .json file of `embed_folder` names the
            images, otherwise all images are sorted by path.
        labels: with `embeddings`, a .npy file (N,); by default, the names of the class folders.
        skip: with `model`, whether to omit images that can't be decoded.
        registry, console: see `evaluate_run`; the registry must provide the evaluator ``"exact"``.
    """
    registry, groups = registry or installed(), None
    evaluator = build_exact(registry)
    if RunFolder(source).recipe.is_file():
        recipe = read_recipe(RunFolder.open(source), registry)
        rows, _ = embed_split(source, split, step=step, registry=registry, console=console)
        dataset = build_dataset(recipe, registry)
        images = {"train": dataset.train, "test": dataset.test, "gallery": dataset.gallery}[split]
        assert images is not None  # `embed_split` raises an error
        paths: Sequence[str] = name_items(images)
        names, groups = np.array(images.class_names)[images.labels], groups_of(images)
    elif embeddings is not None:
        rows, names, paths = read_folder(source, embeddings, labels)
    elif model is not None:
        listed = list_folder(source)
        plan = EmbeddingPlan(open_model(model, registry, step=step), listed)
        rows, done = embed_in_memory(plan, skip=skip, console=console)
        paths = done.paths
        names = _name_labels(listed, paths, labels)
    else:
        raise DmlError(
            f"{source} is a folder of images; choose the run that embeds them, or the file of "
            "embeddings",
            arguments=("model", "embeddings"),
        )
    with convert_errors(f"rank the labels of {source}"):
        return Suspects(paths, names, evaluator.suspect_labels(rows, names, k, groups))


def build_exact(registry: Registry) -> SuspectsEvaluator:
    """Build the evaluator ``"exact"``; raise a `DmlError` if it can't rank labels."""
    evaluator = registry.build("evaluators", {"name": "exact"}, {"seed": 0})
    if not isinstance(evaluator, SuspectsEvaluator):
        raise DmlError("the evaluator 'exact' can't rank labels; install dml-eval-rs")
    return evaluator


def name_items(split: Split) -> list[str]:
    """Return the paths of a split's files or, if it doesn't use files, numbers."""
    if isinstance(split, FileBackedSplit):
        return [str(file) for file in split.files]
    return [f"item {item}" for item in range(len(split))]


def read_folder(
    folder: Path, embeddings: Path, labels: Path | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], list[str]]:
    """Read the embeddings of a folder's images: rows (N, D), labels (N,) and paths in the folder.

    See `find_suspects` for the files. Raise a `DmlError` if the numbers of rows, labels and images
    differ.
    """
    listed, index = list_folder(folder), index_path(embeddings)
    rows = read_array(embeddings)
    paths = list(read_json(index)["paths"] if index.is_file() else listed.names)
    names = _name_labels(listed, paths, labels)
    if not len(rows) == len(names) == len(paths):
        raise DmlError(
            f"there are {len(rows)} embeddings, {len(names)} labels and {len(paths)} images in "
            f"{folder}; expected equal numbers"
        )
    return rows, names, paths


def _name_labels(listed: ImageList, paths: Sequence[str], labels: Path | None) -> npt.NDArray[Any]:
    """Read the labels or, by default, name the folders of classes."""
    if labels is not None:
        return read_array(labels).astype(np.str_)
    numbers, classes = listed.labels(paths)
    return np.array(classes["classes"])[numbers]


def write_corrected(source: Path, fixes: Path, out: Path, registry: Registry | None = None) -> int:
    """Write a table for the data set ``csv`` with all images and corrected labels; return how many
    changed.

    No file of the data set is changed. If the new class is in the other half of the data set, the
    image is moved to this half, since classes must not be in both.

    Args:
        source: a run's folder, a folder of images, or a CSV file, see `inspect_images`.
        fixes: a CSV file with the columns ``path``, as listed by `find_suspects`, and ``label``.
        out: the file to write, with absolute paths.
        registry: provides the run's data set.
    """
    parts, base = _read_parts(source, registry or installed()), Path()
    if not RunFolder(source).recipe.is_file():
        base = source if source.is_dir() else source.parent
    new = {_key(base / row["path"]): (row["label"], line) for line, row in read_rows(fixes)}
    evaluated = {**parts.test, **(parts.gallery or {})}
    has_gallery, changed = parts.gallery is not None, 0
    splits = {"train": "train", "test": "query" if has_gallery else "test", "gallery": "gallery"}
    rows = []
    for part, classes in parts.by_name().items():
        for label, images in classes.items():
            for image in images:
                if not isinstance(image, Path):
                    raise DmlError(f"{image} is inside a file; a table can only name image files")
                path, place = _key(image), part
                fixed, _ = new.pop(path, (label, 0))
                if part == "train" and fixed in evaluated and fixed not in parts.train:
                    place = "gallery" if has_gallery else "test"
                elif part != "train" and fixed in parts.train:
                    place = "train"
                changed += fixed != label
                group = [parts.groups[image]] if parts.groups is not None else []
                rows.append([path, fixed, *([splits[place]] if parts.is_split else []), *group])
    if new:
        path, (_, line) = next(iter(new.items()))
        raise DmlError(f"{fixes}, line {line}: {path} is not an image of {source}")
    header = ["path", "label", *["split"] * parts.is_split, *["group"] * (parts.groups is not None)]
    write_csv(out, header, rows)
    return changed


def _key(path: Path) -> str:
    """Return the absolute path; links stay."""
    return os.path.abspath(path)  # noqa: PTH100


def _read_parts(source: Path, registry: Registry) -> Parts:
    """List the images of a run's data set, or of a folder or table."""
    if not RunFolder(source).recipe.is_file():
        return read_source(source, None)[1]
    dataset = read_recipe(RunFolder.open(source), registry).dataset
    factory = registry.entry("datasets", dataset["name"]).component.factory
    if not isinstance(factory, FileDatasetFactory):
        raise DmlError(f"the data set {dataset['name']!r} doesn't consist of image files")
    return factory.parts(**{name: value for name, value in dataset.items() if name != "name"})

"""Search among a run's own items, a folder of images, or a file of embeddings.

Shapes: `Q` queries, `G` items of the gallery, `D` embedding dimension, `K` nearest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dml_core import DmlError, FileBackedSplit, Registry
from dml_core import registry as installed
from dml_train.files import read_array
from dml_train.measure.evaluate import Embedded, build_evaluator, pack_codes
from dml_train.trained.folder import index_path
from dml_train.trained.images import list_folder
from dml_train.trained.model import TrainedModel
from dml_train.trained.plan import EmbeddingPlan, embed_in_memory
from dml_train.training.build import build_dataset


@dataclass(frozen=True, slots=True)
class Gallery:
    """Items to search in."""

    rows: npt.NDArray[Any]  # (G, D) floating, or (G, ceil(D / 8)) uint8 codes
    names: Sequence[str]  # (G,) of the items: paths, or classes
    files: Sequence[Path | None]  # (G,) their images; None for an item without a file
    # Returns an item's picture, (height, width, 3) uint8; None if there are no pictures.
    picture: Callable[[int], npt.NDArray[np.uint8]] | None
    note: str = ""  # a remark for the user, such as a reason for missing names; empty if there is none

    @property
    def coded(self) -> bool:
        """Whether the rows are binary codes."""
        return self.rows.dtype == np.uint8

    @classmethod
    def of_run(cls, model: TrainedModel, registry: Registry | None = None) -> Gallery:
        """Return the run's gallery, or else its test split; raise DmlError unless the run ended and evaluated it."""
        folder, reason = model.folder, ""
        if not folder.is_finished or not folder.embeddings().is_file():
            reason = "no embeddings to search in (it isn't finished, or evaluation.test is false)"
        elif model.step != (evaluated := folder.read_evaluation()["step"]):
            reason = f"embeddings of step {evaluated}, and the model has the weights of step {model.step}"
        if reason:
            raise DmlError(
                f"the run in {folder.path} has {reason}; search in a folder of images or in a file of embeddings "
                "instead",
                arguments=("gallery", "index"),
            )
        embedded = Embedded.read(folder)
        rows = embedded.embeddings if embedded.gallery is None else embedded.gallery
        try:
            dataset = build_dataset(model.recipe, registry or installed())
            split = dataset.gallery or dataset.test
            if len(split) != len(rows):
                raise DmlError(f"it has {len(split)} items now and had {len(rows)}")
        except DmlError as error:
            names = [f"item {row}" for row in range(len(rows))]
            note = f"Without names and pictures, as the run's data set can't be loaded: {error}"
            return cls._without_files(rows, names, note)
        files: Sequence[Path | None] = (
            split.files if isinstance(split, FileBackedSplit) else [None] * len(rows)
        )
        classes = [split.class_names[label] for label in split.labels]
        names = [f"{name}/{file.name}" if file else name for name, file in zip(classes, files)]
        return cls(rows, names, files, split.picture)

    @classmethod
    def of_folder(
        cls,
        model: TrainedModel,
        folder: Path | str,
        *,
        skip: bool = False,
        workers: int = 0,
        console: Console | None = None,
    ) -> Gallery:
        """Embed the images of a folder as a gallery; see `embed_folder` for arguments and errors."""
        plan = EmbeddingPlan(model, list_folder(Path(folder)))
        found = embed_in_memory(plan, skip=skip, workers=workers, console=console)
        note = f"{len(found.skipped)} images skipped" if found.skipped else ""
        return cls._of_files(model, found.rows, Path(folder), found.paths, note)

    @classmethod
    def of_index(cls, model: TrainedModel, index: Path | str) -> Gallery:
        """Read a .npy file of embeddings or codes, with the images in the JSON file beside it, or raise DmlError."""
        index = Path(index)
        rows, description = read_array(index), index_path(index)
        code_bytes = -(-model.dim // 8)
        coded = rows.dtype == np.uint8
        width = code_bytes if coded else model.dim
        if rows.ndim != 2 or rows.shape[1] != width or not (coded or rows.dtype.kind == "f"):
            raise DmlError(
                f"{index} holds {rows.dtype} of shape {rows.shape}; expected floats (N, {model.dim}) or uint8 "
                f"(N, {code_bytes}), as the run in {model.folder.path} embeds"
            )
        if not description.is_file():
            names = [f"row {row}" for row in range(len(rows))]
            note = f"{description} is missing, so the rows have no names"
            return cls._without_files(rows, names, note)
        try:
            described = json.loads(description.read_text(encoding="utf-8"))
            paths = [Path(path).as_posix() for path in described["paths"]]
            weights, folder = described["weights"], described.get("folder")
            folder = None if folder is None else Path(folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DmlError(f"{description} is damaged: {type(error).__name__}: {error}") from error
        if weights != model.weights:
            raise DmlError(
                f"{index} was embedded with other weights (the run {described.get('run')}, step "
                f"{described.get('step')}); embed it again with the run in {model.folder.path}"
            )
        if len(paths) != len(rows):
            raise DmlError(f"{description} names {len(paths)} images, and {index} has {len(rows)} rows")
        if folder is None:
            return cls._without_files(
                rows, paths, "Without pictures, as the images lie in archives or tables"
            )
        return cls._of_files(model, rows, folder, paths)

    @classmethod
    def _without_files(cls, rows: npt.NDArray[Any], names: Sequence[str], note: str) -> Gallery:
        return cls(rows, names, [None] * len(rows), None, note)

    @classmethod
    def _of_files(
        cls, model: TrainedModel, rows: npt.NDArray[Any], folder: Path, paths: Sequence[str], note: str = ""
    ) -> Gallery:
        files = [folder / path for path in paths]
        return cls(rows, paths, files, model.split_of(files).picture, note)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The nearest items of one query, nearest first."""

    query: Path
    indices: Sequence[int]  # (K,) of the items in the gallery
    scores: Sequence[float]  # (K,) similarities, or Hamming distances of codes
    score: str  # the scores' name


def search(
    model: TrainedModel,
    gallery: Gallery,
    queries: Sequence[Path | str],
    *,
    k: int = 10,
    codes: bool = False,
    registry: Registry | None = None,
) -> list[SearchResult]:
    """Find the k nearest items of every query, exactly; ties are ordered by gallery index.

    A query that is itself a file of the gallery is excluded from its own results.

    Args:
        model: embeds the queries.
        gallery: the items to search in.
        queries: image files.
        k: maximal number of items for each query.
        codes: whether to compare binary codes; a gallery of codes always does.
        registry: provides the run's evaluator, which compares floats; default: all installed ones.

    Raises:
        DmlError: a query that can't be decoded.
    """
    if not queries:
        return []
    files = [Path(query) for query in queries]
    embeddings_QD = model.embed_images(files)
    count = min(k + 1, len(gallery.rows))
    if codes or gallery.coded:
        rows = gallery.rows if gallery.coded else pack_codes(gallery.rows)
        score = "Hamming distance"
        scores_QK, indices_QK = _nearest_codes(pack_codes(embeddings_QD), rows, count)
    else:
        evaluator = build_evaluator(model.recipe, registry or installed(), clustering=False)
        table = model.recipe.evaluation.component()
        score = f"similarity ({table.get('similarity', table['name'])})"
        scores_QK, indices_QK = evaluator.nearest(embeddings_QD, gallery.rows, count)
    own = {file.resolve(): index for index, file in enumerate(gallery.files) if file is not None}
    results = []
    for query, indices_K, scores_K in zip(files, indices_QK, scores_QK):
        kept = np.flatnonzero(indices_K != own.get(query.resolve(), -1))[:k]
        results.append(SearchResult(query, indices_K[kept].tolist(), scores_K[kept].tolist(), score))
    return results


def _nearest_codes(
    queries_QB: npt.NDArray[np.uint8], gallery_GB: npt.NDArray[np.uint8], k: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return Hamming distances and indices, both (Q, k)."""
    indices_QK = np.empty((len(queries_QB), k), np.int64)
    distances_QK = np.empty_like(indices_QK)
    for row, code in enumerate(queries_QB):
        distance_G = np.bitwise_count(gallery_GB ^ code).sum(axis=1, dtype=np.int64)
        indices_QK[row] = np.argsort(distance_G, kind="stable")[:k]
        distances_QK[row] = distance_G[indices_QK[row]]
    return distances_QK, indices_QK

"""Search a run's gallery, a folder of images, or a file of embeddings.

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
from dml_train.trained.whitening import whiten
from dml_train.training.build import build_dataset


@dataclass(frozen=True, slots=True)
class Gallery:
    """Items to search."""

    rows: npt.NDArray[Any]  # (G, D) floating, or (G, ceil(D / 8)) uint8 codes
    names: Sequence[str]  # (G,) paths or classes of the items
    files: Sequence[Path | None]  # (G,) image files; None for an item that isn't a file
    # Returns an item's picture, (height, width, 3) uint8; None if pictures can't be shown.
    picture: Callable[[int], npt.NDArray[np.uint8]] | None
    note: str = ""  # a remark for the user, for example why names are missing

    @property
    def coded(self) -> bool:
        """Whether the rows are binary codes."""
        return self.rows.dtype == np.uint8

    @classmethod
    def of_run(cls, model: TrainedModel, registry: Registry | None = None) -> Gallery:
        """Return a run's gallery, or the test split if there is none; raise DmlError unless the run
        evaluated it.
        """
        folder, reason = model.folder, ""
        if not folder.is_finished or not folder.embeddings().is_file():
            reason = "no embeddings to search in (it isn't finished, or evaluation.test is false)"
        elif model.step != (evaluated := folder.read_evaluation()["step"]):
            reason = (
                f"embeddings of step {evaluated}, but the model has the weights of step "
                f"{model.step}"
            )
        if reason:
            raise DmlError(
                f"the run in {folder.path} has {reason}; search a folder of images or a file of "
                "embeddings instead",
                arguments=("gallery", "index"),
            )
        embedded = Embedded.read(folder)
        rows = embedded.embeddings if embedded.gallery is None else embedded.gallery
        if (whitening := model.network.whitening) is not None:
            rows = whiten(whitening, rows)
        try:
            dataset = build_dataset(model.recipe, registry or installed())
            split = dataset.gallery or dataset.test
            if len(split) != len(rows):
                raise DmlError(f"it contains {len(split)} items now, but had {len(rows)}")
        except DmlError as error:
            names = [f"item {row}" for row in range(len(rows))]
            note = f"Without names and pictures, since the run's data set can't be loaded: {error}"
            return cls(rows, names, [None] * len(rows), None, note)
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
        """Embed the images of a folder as a gallery; see `embed_folder` for the arguments and
        errors.
        """
        plan = EmbeddingPlan(model, list_folder(Path(folder)))
        rows, done = embed_in_memory(plan, skip=skip, workers=workers, console=console)
        note = f"{len(done.skipped)} images skipped" if done.skipped else ""
        return cls._of_files(model, rows, Path(folder), done.paths, note)

    @classmethod
    def of_index(cls, model: TrainedModel, index: Path | str) -> Gallery:
        """Read a .npy file of embeddings or codes, and the JSON file that names the images, or
        raise DmlError.
        """
        index = Path(index)
        rows, description = read_array(index), index_path(index)
        code_bytes = -(-model.dim // 8)
        coded = rows.dtype == np.uint8
        width = code_bytes if coded else model.dim
        if rows.ndim != 2 or rows.shape[1] != width or not (coded or rows.dtype.kind == "f"):
            raise DmlError(
                f"{index} contains {rows.dtype} of shape {rows.shape}; expected floats (N, "
                f"{model.dim}) or uint8 (N, {code_bytes}), as embedded by the run in "
                f"{model.folder.path}"
            )
        if not description.is_file():
            names = [f"row {row}" for row in range(len(rows))]
            note = f"{description} is missing, so the rows have no names"
            return cls(rows, names, [None] * len(rows), None, note)
        try:
            described = json.loads(description.read_text(encoding="utf-8"))
            paths = [Path(path).as_posix() for path in described["paths"]]
            weights = described["weights"]
            folder = None if described.get("folder") is None else Path(described["folder"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DmlError(
                f"{description} is damaged ({error!r}); embed the images again"
            ) from error
        if weights != model.weights:
            raise DmlError(
                f"{index} was embedded with different weights (run {described.get('run')}, step "
                f"{described.get('step')}); embed it again with the run in {model.folder.path}"
            )
        if len(paths) != len(rows):
            raise DmlError(
                f"{description} names {len(paths)} images, but {index} contains {len(rows)} rows"
            )
        if folder is None:
            note = "Without pictures, since the images are in archives or tables"
            return cls(rows, paths, [None] * len(rows), None, note)
        return cls._of_files(model, rows, folder, paths)

    @classmethod
    def _of_files(
        cls,
        model: TrainedModel,
        rows: npt.NDArray[Any],
        folder: Path,
        paths: Sequence[str],
        note: str = "",
    ) -> Gallery:
        files = [folder / path for path in paths]
        return cls(rows, paths, files, model.split_of(files).picture, note)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The items nearest to a query, nearest first."""

    query: Path
    indices: Sequence[int]  # (K,) indices of items in the gallery
    scores: Sequence[float]  # (K,) similarities, or Hamming distances of codes
    score: str  # the name of the scores


def search(
    model: TrainedModel,
    gallery: Gallery,
    queries: Sequence[Path | str],
    *,
    k: int = 10,
    codes: bool = False,
    registry: Registry | None = None,
) -> list[SearchResult]:
    """Find the k nearest items per query, exactly; ties are ordered by gallery index.

    If a query is a file of the gallery, it will be excluded from this query's results. Raise
    DmlError if a query can't be decoded.

    Args:
        model, gallery: embeds the queries; the items to search.
        queries: image files.
        k: maximal number of items per query.
        codes: whether to compare binary codes. If the gallery contains codes, these are always
            compared.
        registry: provides the run's evaluator, which compares floats; default: all installed ones.
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
    positions = {
        file.resolve(): index for index, file in enumerate(gallery.files) if file is not None
    }
    results = []
    for query, indices_K, scores_K in zip(files, indices_QK, scores_QK):
        kept = np.flatnonzero(indices_K != positions.get(query.resolve(), -1))[:k]
        results.append(
            SearchResult(query, indices_K[kept].tolist(), scores_K[kept].tolist(), score)
        )
    return results


def _nearest_codes(
    queries_QB: npt.NDArray[np.uint8], gallery_GB: npt.NDArray[np.uint8], k: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the Hamming distances and indices of the nearest codes, both (Q, k)."""
    indices_QK = np.empty((len(queries_QB), k), np.int64)
    distances_QK = np.empty_like(indices_QK)
    for row, code in enumerate(queries_QB):
        distance_G = np.bitwise_count(gallery_GB ^ code).sum(axis=1, dtype=np.int64)
        indices_QK[row] = np.argsort(distance_G, kind="stable")[:k]
        distances_QK[row] = distance_G[indices_QK[row]]
    return distances_QK, indices_QK

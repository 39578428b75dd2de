"""What a query is searched in: a run's own items, a folder of images, or a file of embeddings; and the search.

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

from dml_core import Dataset, DmlError, Evaluator, FileBackedSplit, Registry, Split
from dml_train.files import read_array
from dml_train.measure.evaluate import Embedded, pack_codes
from dml_train.progress import stage
from dml_train.trained.files import embed_chunks, images_in, in_chunks, without
from dml_train.trained.folder import index_of
from dml_train.trained.model import TrainedModel


@dataclass(frozen=True, slots=True)
class Gallery:
    """Items that can be found.

    Args:
        rows: (G, D) floating, or (G, ceil(D / 8)) uint8 codes.
        names: (G,) what the items are called: paths, or classes.
        files: (G,) their images, where they have any.
        picture: how an item looks, (height, width, 3) uint8; None where that can't be had.
        note: what isn't as one would expect; empty if nothing.
    """

    rows: npt.NDArray[Any]
    names: Sequence[str]
    files: Sequence[Path | None]
    picture: Callable[[int], npt.NDArray[np.uint8]] | None
    note: str = ""

    @property
    def coded(self) -> bool:
        """Whether the rows are binary codes."""
        return self.rows.dtype == np.uint8

    @classmethod
    def of_run(cls, model: TrainedModel, registry: Registry) -> Gallery:
        """The items that the run was measured on: its gallery, or else its test split.

        Raises:
            DmlError: if the run hasn't ended, or left its test split alone.
        """
        folder = model.folder
        if not folder.evaluation.is_file() or not folder.embeddings().is_file():
            raise DmlError(
                f"the run in {folder.path} has left no embeddings to search in (it hasn't ended, or left its test "
                "split alone); give images with --gallery or embeddings with --index"
            )
        embedded = Embedded.read(folder)
        rows = embedded.embeddings if embedded.gallery is None else embedded.gallery
        try:
            split = _measured_split(model, registry)
            if len(split) != len(rows):
                raise DmlError(f"it has {len(split)} items now and had {len(rows)}")
        except DmlError as error:
            names = [f"item {row}" for row in range(len(rows))]
            note = f"Without names and pictures, as the run's data set can't be had: {error}"
            return cls(rows, names, [None] * len(rows), None, note)
        files: Sequence[Path | None] = (
            split.files if isinstance(split, FileBackedSplit) else [None] * len(rows)
        )
        classes = [split.class_names[label] for label in split.labels]
        names = [f"{name}/{file.name}" if file else name for name, file in zip(classes, files)]
        return cls(rows, names, files, split.picture)

    @classmethod
    def of_folder(
        cls, model: TrainedModel, folder: Path, *, skip: bool, workers: int, console: Console
    ) -> Gallery:
        """The images of a folder, embedded now.

        Raises:
            DmlError: as `embed_chunks`; if there is no image that can be decoded.
        """
        chunks = in_chunks(images_in(folder))
        files = [[folder / path for path in chunk] for chunk in chunks]
        total, done = sum(map(len, chunks)), 0
        parts: list[npt.NDArray[np.float32]] = []
        kept: list[Path] = []
        with stage(console, "embed", total) as show:
            for chunk, part in zip(chunks, embed_chunks(model, files, skip=skip, workers=workers)):
                parts.append(part.embeddings)
                kept += without(chunk, part.bad)
                done += len(chunk)
                show(done, "")
        if not kept:
            raise DmlError(f"none of the {total} images in {folder} can be decoded")
        skipped = total - len(kept)
        return cls._of_files(
            model, np.concatenate(parts), folder, kept, f"{skipped} images skipped" if skipped else ""
        )

    @classmethod
    def of_index(cls, model: TrainedModel, index: Path) -> Gallery:
        """Embeddings or codes of a .npy file; with the JSON file that `dml embed` writes beside it, their images.

        Raises:
            DmlError: a file that is damaged, or embeddings that aren't of this network.
        """
        rows, about, dim = read_array(index), index_of(index), model.model.head.embedding_dim
        coded = rows.dtype == np.uint8
        width = -(-dim // 8) if coded else dim
        if rows.ndim != 2 or rows.shape[1] != width or not (coded or rows.dtype.kind == "f"):
            raise DmlError(
                f"{index} holds {rows.dtype} of shape {rows.shape}; expected floats (N, {dim}) or uint8 "
                f"(N, {-(-dim // 8)}), as the run in {model.folder.path} embeds"
            )
        if not about.is_file():
            names = [f"row {row}" for row in range(len(rows))]
            return cls(
                rows, names, [None] * len(rows), None, f"{about} is missing, so the rows have no names"
            )
        try:
            words = json.loads(about.read_text(encoding="utf-8"))
            paths, weights, folder = (
                [Path(p) for p in words["paths"]],
                words["weights"],
                Path(words["folder"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DmlError(f"{about} is damaged: {type(error).__name__}: {error}") from error
        if weights != model.weights:
            raise DmlError(
                f"{index} was embedded by other weights (the run {words.get('run')}, step {words.get('step')}); "
                f"embed it again by the run in {model.folder.path}"
            )
        if len(paths) != len(rows):
            raise DmlError(f"{about} names {len(paths)} images, and {index} has {len(rows)} rows")
        return cls._of_files(model, rows, folder, paths)

    @classmethod
    def _of_files(
        cls, model: TrainedModel, rows: npt.NDArray[Any], folder: Path, paths: Sequence[Path], note: str = ""
    ) -> Gallery:
        files = [folder / path for path in paths]
        return cls(rows, [path.as_posix() for path in paths], files, model.split_of(files).picture, note)


@dataclass(frozen=True, slots=True)
class Found:
    """The nearest items of one query, nearest first.

    Args:
        query: the image.
        places: (K,) in the gallery.
        scores: (K,) similarities, or the bits in which codes differ.
    """

    query: Path
    places: Sequence[int]
    scores: Sequence[float]


def search(
    model: TrainedModel,
    evaluator: Evaluator,
    gallery: Gallery,
    queries: Sequence[Path],
    k: int,
    *,
    codes: bool,
) -> list[Found]:
    """The k nearest items of every query, exactly; of equals, the one that comes first in the gallery.

    A query that is itself one of the gallery's files isn't among what it finds.

    Args:
        model: what embeds the queries.
        evaluator: what compares floats.
        gallery: what they are searched in.
        queries: image files.
        k: how many, at most.
        codes: whether to compare by binary codes; a gallery of codes always is.

    Raises:
        DmlError: a query that can't be decoded.
    """
    embeddings_QD = np.concatenate(
        [part.embeddings for part in embed_chunks(model, in_chunks(queries), skip=False, workers=0)]
    )
    most = min(k + 1, len(gallery.rows))
    if codes or gallery.coded:
        rows = gallery.rows if gallery.coded else pack_codes(gallery.rows)
        scores_QK, places_QK = _nearest_codes(pack_codes(embeddings_QD), rows, most)
    else:
        scores_QK, places_QK = evaluator.nearest(embeddings_QD, gallery.rows, most)
    own = {file.resolve(): place for place, file in enumerate(gallery.files) if file is not None}
    found = []
    for query, places, scores in zip(queries, places_QK.tolist(), scores_QK.tolist()):
        itself = own.get(query.resolve())
        pairs = [(place, score) for place, score in zip(places, scores) if place != itself][:k]
        found.append(Found(query, [place for place, _ in pairs], [score for _, score in pairs]))
    return found


def _nearest_codes(
    queries_QB: npt.NDArray[np.uint8], gallery_GB: npt.NDArray[np.uint8], k: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Hamming distances and places, both (Q, k)."""
    distances, places = [], []
    for code in queries_QB:
        distance_G = np.bitwise_count(gallery_GB ^ code).sum(axis=1, dtype=np.int64)
        nearest = np.argsort(distance_G, kind="stable")[:k]
        distances.append(distance_G[nearest])
        places.append(nearest)
    return np.stack(distances), np.stack(places)


def _measured_split(model: TrainedModel, registry: Registry) -> Split:
    recipe = model.recipe
    dataset: Dataset = registry.build("datasets", recipe.dataset, {"seed": recipe.training.seed})
    return dataset.gallery or dataset.test

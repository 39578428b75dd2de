"""The engine 'ray': chunks of images are embedded by the workers of a Ray cluster, through Ray Data.

A row of the data set is a chunk, so that a chunk's images share a forward pass, as in one process. Embeddings return to
this process, which writes them: finished chunks survive its death, and machines needn't share the folder of results. A
chunk whose machine dies is embedded on another one.
"""

from __future__ import annotations

import logging
import pickle
import platform
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dml_core import DmlError, Registry
from dml_core import registry as installed
from dml_train.cluster.ray_cluster import RayCluster
from dml_train.cluster.workers import Expected
from dml_train.data.decoding import ImageSource
from dml_train.measure.embed import BadImage, ImageChunks
from dml_train.measure.evaluate import pack_codes
from dml_train.trained.images import SplitName, list_split
from dml_train.trained.model import TrainedModel, open_model
from dml_train.trained.plan import ChunkRows, EmbeddingPlan

_MOST_BLOCKS = 10_000  # of Ray's data set; more would slow its scheduler


@dataclass(frozen=True, slots=True)
class RayEngine:
    """The engine of a Ray cluster. Workers use the installed components.

    Args:
        cluster: where, and the resources of each worker.
        most: workers at a time; None: as many as fit.
        registry: this process's components: workers must have the same packages.
    """

    cluster: RayCluster
    most: int | None = None
    registry: Registry | None = None

    def __call__(self, plan: EmbeddingPlan, chunks: Sequence[int]) -> Generator[ChunkRows, None, None]:
        """Embed chunks of a plan, in the order in which they end; see `Engine`."""
        providers = (self.registry or installed()).plugins.providers
        distributions = {"dml-train", "torch", *(provider.distribution for provider in providers)}
        with self.cluster.connect(distributions, None) as expected:
            import ray

            context = ray.data.DataContext.get_current()
            context.enable_progress_bars = False
            logging.getLogger("ray.data").setLevel(logging.ERROR)  # it says how each execution goes
            workers = self.cluster.count_workers()
            workers = min(workers, len(chunks), self.most or workers)
            rows = [
                {"chunk": chunk, "sources": ray.cloudpickle.dumps(sources_of(plan, chunk))}
                for chunk in chunks
            ]
            embedded = ray.data.from_items(
                rows, override_num_blocks=min(len(rows), _MOST_BLOCKS)
            ).map_batches(
                _ChunkEmbedder,
                fn_constructor_args=[_Task.of(plan, self.cluster.cpus, expected)],
                batch_size=1,
                compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers, initial_size=workers),
                **self.cluster.options(),
            )
            for row in embedded.iter_rows():
                if row["error"]:
                    raise DmlError(row["error"])
                bad = [BadImage(*image) for image in pickle.loads(row["bad"])]
                values = np.frombuffer(row["rows"], dtype=plan.dtype).reshape(-1, plan.width)
                yield ChunkRows(int(row["chunk"]), values, bad)


def sources_of(plan: EmbeddingPlan, chunk: int) -> list[ImageSource]:
    """Return what another machine needs to read a chunk's images; nothing for a split, whose data set it builds."""
    sources = plan.images.sources
    found = [sources[item] for item in plan.items(chunk)] if sources else []
    return [source.absolute() if isinstance(source, Path) else source for source in found]


@dataclass(frozen=True, slots=True)
class _Task:
    """What a worker needs to know."""

    run: Path
    step: int
    weights: str
    split: SplitName | None
    places: Sequence[Path]
    codes: bool
    chunk_size: int
    threads: int
    expected: Expected

    @classmethod
    def of(cls, plan: EmbeddingPlan, threads: int, expected: Expected) -> _Task:
        model, images = plan.model, plan.images
        places = [place.absolute() for place in images.places]
        return cls(
            model.folder.path.absolute(), model.step, model.weights, images.split_name, places,
            plan.codes, plan.chunk_size, threads, expected,
        )  # fmt: skip


class _ChunkEmbedder:
    """A worker: it opens the run once, and embeds a chunk a call.

    Errors are returned as values, since Ray repeats a call that raises, and wraps its error.
    """

    def __init__(self, task: _Task) -> None:
        self._task, self._error = task, ""
        self._model: TrainedModel | None = None
        try:
            torch.set_num_threads(task.threads)  # the last bits of an embedding may depend on their number
            task.expected.check_this_process()
            task.expected.enter()
            self._model = self._open()
            self._split = list_split(self._model, task.split).split if task.split else None
        except DmlError as error:
            self._error = str(error)

    def _open(self) -> TrainedModel:
        worker = f"a worker on {platform.node()}"
        for place in (self._task.run, *self._task.places):
            if not place.exists():
                raise DmlError(f"{worker} doesn't see {place}; expected a path that all machines share")
        model = open_model(self._task.run, step=self._task.step)
        if model.weights != self._task.weights:
            raise DmlError(
                f"{worker} sees another run, with other weights, at {self._task.run}; "
                "expected a path that all machines share"
            )
        return model

    def __call__(self, batch: dict[str, npt.NDArray[Any]]) -> dict[str, list[Any]]:
        """Embed one chunk."""
        chunk, rows = int(batch["chunk"][0]), b""
        bad: list[tuple[int, str]] = []
        if not self._error:
            try:
                rows, bad = self._embed(chunk, pickle.loads(batch["sources"][0]))
            except DmlError as error:
                self._error = str(error)
        return {"chunk": [chunk], "rows": [rows], "bad": [pickle.dumps(bad)], "error": [self._error]}

    def _embed(self, chunk: int, sources: list[Any]) -> tuple[bytes, list[tuple[int, str]]]:
        model, size = self._model, self._task.chunk_size
        assert model is not None
        if self._split is None:
            images = model.chunks_of(sources, [np.arange(len(sources))])
        else:
            items = np.arange(chunk * size, min((chunk + 1) * size, len(self._split)))
            images = ImageChunks(self._split, [items])
        (embedded,) = model.embed_chunks(images)
        rows = pack_codes(embedded.embeddings) if self._task.codes else embedded.embeddings
        return rows.tobytes(), [(image.position, image.reason) for image in embedded.bad]

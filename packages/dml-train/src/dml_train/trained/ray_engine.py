"""The engine 'ray', which embeds chunks of images on the workers of a Ray cluster, using Ray Data.

A row of the Ray data set is a chunk, so that a chunk's images share a forward pass, as in a single
process. This process receives and writes the embeddings, so that finished chunks survive an
interruption and machines needn't share the output folder. If a machine dies, a different machine
embeds the chunk again.
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
from dml_train.measure.embed import BadImage
from dml_train.trained.images import ImageList, SplitName, list_split
from dml_train.trained.model import open_model
from dml_train.trained.plan import ChunkRows, EmbeddingPlan, ThisProcess

_MOST_BLOCKS = 10_000  # more blocks in a Ray data set would slow down Ray's scheduler


@dataclass(frozen=True, slots=True)
class RayEngine:
    """The engine that embeds on a Ray cluster. Workers use the installed components."""

    cluster: RayCluster  # the cluster, and the resources per worker
    most: int | None = None  # maximal number of workers; None: limited by the cluster
    registry: Registry | None = (
        None  # workers need identical packages; default: all installed components
    )

    def __call__(
        self, plan: EmbeddingPlan, chunks: Sequence[int]
    ) -> Generator[ChunkRows, None, None]:
        """Embed chunks of a plan, and yield chunks when these are finished."""
        with self.cluster.connect(self.registry or installed(), None) as expected:
            import ray

            context = ray.data.DataContext.get_current()
            context.enable_progress_bars = False
            logging.getLogger("ray.data").setLevel(
                logging.ERROR
            )  # by default, it reports every execution
            workers = self.cluster.count_workers()
            workers = min(workers, len(chunks), self.most or workers)
            sources = {chunk: ray.cloudpickle.dumps(list_sources(plan, chunk)) for chunk in chunks}
            rows = [{"chunk": chunk, "sources": pickled} for chunk, pickled in sources.items()]
            data = ray.data.from_items(rows, override_num_blocks=min(len(rows), _MOST_BLOCKS))
            embedded = data.map_batches(
                ChunkEmbedder,
                fn_constructor_kwargs=worker_arguments(plan, self.cluster.cpus, expected),
                batch_size=1,
                compute=ray.data.ActorPoolStrategy(
                    min_size=1, max_size=workers, initial_size=workers
                ),
                **self.cluster.options(),
            )
            for row in embedded.iter_rows():
                if row["error"]:
                    raise DmlError(row["error"])
                bad = [BadImage(*image) for image in pickle.loads(row["bad"])]
                values = np.frombuffer(row["rows"], dtype=plan.dtype).reshape(-1, plan.width)
                yield ChunkRows(int(row["chunk"]), values, bad)


def list_sources(plan: EmbeddingPlan, chunk: int) -> list[ImageSource]:
    """List a chunk's images for a worker to read; empty for a split, since the worker builds the
    data set.
    """
    found = [plan.images.sources[item] for item in plan.items(chunk)] if plan.images.sources else []
    return [source.absolute() if isinstance(source, Path) else source for source in found]


def worker_arguments(plan: EmbeddingPlan, threads: int, expected: Expected) -> dict[str, Any]:
    """Return the arguments of `ChunkEmbedder` for a plan."""
    return {
        "run": plan.model.folder.path.absolute(),
        "step": plan.model.step,
        "weights": plan.model.weights,
        "split": plan.images.split_name,
        "places": [place.absolute() for place in plan.images.places],
        "codes": plan.codes,
        "chunk_size": plan.chunk_size,
        "threads": threads,
        "expected": expected,
    }


class ChunkEmbedder:
    """A worker that opens the run once, and embeds a chunk per call.

    Errors are returned as values, since Ray repeats a call that raises an error, and wraps the
    error.
    """

    def __init__(
        self,
        run: Path,
        step: int,
        weights: str,
        split: SplitName | None,
        places: Sequence[Path],
        codes: bool,
        chunk_size: int,
        threads: int,
        expected: Expected,
    ) -> None:
        self._codes, self._chunk_size, self._error = codes, chunk_size, ""
        try:
            torch.set_num_threads(
                threads
            )  # the number of threads may change the last bits of an embedding
            expected.enter()
            worker = f"a worker on {platform.node()}"
            for place in (run, *places):
                if not place.exists():
                    raise DmlError(
                        f"{worker} doesn't see {place}; expected a path that all machines share"
                    )
            self._model = open_model(run, step=step)
            if self._model.weights != weights:
                raise DmlError(
                    f"{worker} sees different weights in the run {run}; expected a path that all "
                    "machines share"
                )
            self._split = list_split(self._model, split) if split else None
        except DmlError as error:
            self._error = str(error)

    def __call__(self, batch: dict[str, npt.NDArray[Any]]) -> dict[str, list[Any]]:
        """Embed a chunk."""
        chunk, answer = int(batch["chunk"][0]), {"rows": [b""], "bad": [b""]}
        if not self._error:
            try:
                found = self._embed(chunk, pickle.loads(batch["sources"][0]))
                answer = {
                    "rows": [found.rows.tobytes()],
                    "bad": [pickle.dumps([*map(tuple, found.bad)])],
                }
            except DmlError as error:
                self._error = str(error)
        return {"chunk": [chunk], **answer, "error": [self._error]}

    def _embed(self, chunk: int, sources: list[ImageSource]) -> ChunkRows:
        images, size = self._split, self._chunk_size
        if images is None:  # only the images of this chunk are known here
            images, size, chunk = (
                ImageList("a chunk", [""] * len(sources), sources),
                len(sources),
                0,
            )
        (result,) = ThisProcess()(EmbeddingPlan(self._model, images, self._codes, size), [chunk])
        return result

"""`--engine ray` should give the bits of a single process when machine and driver die, and repeat
little work.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from train_support import logged_images
from train_support.logged_images import log_readings
from train_support.photo_world import photo_document, write_photos

from dml_core import registry
from dml_train.cluster.ray_cluster import RayCluster
from dml_train.cluster.workers import expect
from dml_train.recipe.checking import parse
from dml_train.trained.folder import embed_images
from dml_train.trained.images import list_split
from dml_train.trained.model import open_model
from dml_train.trained.plan import EmbeddingPlan, ThisProcess
from dml_train.trained.ray_engine import ChunkEmbedder, RayEngine, list_sources, worker_arguments
from dml_train.training.run import train

ray = pytest.importorskip("ray", reason="Ray isn't installed, or has no wheel for this platform")

# Ray Data warns that defaults will change.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """Train a run, and write 330 photos to embed, including a bad photo."""
    folder = tmp_path_factory.mktemp("shared")
    document = photo_document(write_photos(folder / "data")) | {"loss": {"name": "norm-softmax"}}
    train(parse(document, registry()), folder / "run", console=Console(quiet=True))
    write_photos(folder / "photos", classes=11, each=30, seed=1)
    (folder / "photos" / "class-3" / "7.png").write_bytes(b"no image")
    return folder


@pytest.fixture
def plan(world, tmp_path) -> EmbeddingPlan:
    """Plan 21 chunks of images that are slow to read, and note each read in a file."""
    images = log_readings(world / "photos", tmp_path / "log", seconds=0.01)
    return EmbeddingPlan(open_model(world / "run"), images, chunk_size=16)


class Killed(BaseException):
    """Raised in place of a SIGKILL of the driver; no error handling may catch it."""


@pytest.mark.slow
def test_a_cluster_that_loses_a_machine_and_its_driver_changes_no_bit(ray_nodes, plan, tmp_path):
    ray.cloudpickle.register_pickle_by_value(logged_images)  # the nodes can't import this module
    engine = RayEngine(RayCluster(ray_nodes.address))
    killer = threading.Thread(target=ray_nodes.kill_worker)

    def dying(plan, chunks):
        with closing(engine(plan, chunks)) as results:
            for number, result in enumerate(results, start=1):
                if number == 3:
                    killer.start()
                if number == 16:
                    raise Killed
                yield result

    with pytest.raises(Killed):
        embed_images(plan, tmp_path / "e.npy", dying, skip=True, labels=tmp_path / "l.npy")
    killer.join()
    first = Counter(line.split()[1] for line in (tmp_path / "log").read_text().splitlines())
    asked: list[int] = []

    def resuming(plan, chunks):
        asked.extend(chunks)
        yield from ThisProcess()(plan, chunks)

    done = embed_images(plan, tmp_path / "e.npy", resuming, skip=True, labels=tmp_path / "l.npy")
    assert done.reused == 330 - plan.count(asked)
    assert len(asked) == 21 - 15  # chunks that had arrived are not embedded again

    (tmp_path / "one").mkdir()
    one = tmp_path / "one"
    embed_images(plan, one / "e.npy", ThisProcess(), skip=True, labels=one / "l.npy")
    for name in ("e.npy", "e.json", "l.npy"):
        assert (tmp_path / name).read_bytes() == (one / name).read_bytes(), name

    # To find the bad image, images of the same chunk are read again one by one. Other images are
    # read twice only if the machine that died had their chunk: a chunk in work, chunks that waited,
    # or a finished chunk not yet handed over.
    bad = plan.images.names.index("class-3/7.png") // 16
    beside = {image.name for image in list_sources(plan, bad)}
    twice = [path for path, count in first.items() if count > 1 and path not in beside]
    assert len(twice) <= 3 * 16


@pytest.fixture
def worker(plan):
    """Call a worker for a chunk; return rows, bad images and error."""
    with expect(registry(), None) as expected:

        def work(chunk: int, plan: EmbeddingPlan = plan, **changes):
            sources = pickle.dumps(list_sources(plan, chunk))
            columns = {"chunk": np.array([chunk]), "sources": np.array([sources], dtype=object)}
            embedder = ChunkEmbedder(**worker_arguments(plan, 1, expected) | changes)
            answer = pickle.loads(pickle.dumps(embedder(columns)))
            assert answer["chunk"] == [chunk]
            rows = np.frombuffer(answer["rows"][0], dtype=plan.dtype).reshape(-1, plan.width)
            bad = answer["bad"][0]
            return rows, pickle.loads(bad) if bad else [], answer["error"][0]

        yield work


@pytest.mark.parametrize("codes", [False, True], ids=["floats", "codes"])
def test_a_worker_gives_the_rows_of_this_process(worker, plan, codes):
    folder = replace(plan, codes=codes)
    split = replace(folder, images=list_split(plan.model, "test"), chunk_size=8)
    for whole in (folder, split):
        chunks = range(len(whole))[-2:]
        for expected in ThisProcess()(whole, chunks):
            rows, bad, error = worker(expected.chunk, whole)
            np.testing.assert_array_equal(rows, expected.rows)
            assert (bad, error) == ([], "")


def test_a_worker_names_bad_images_and_what_it_does_not_see(worker, plan, tmp_path):
    chunk = plan.images.names.index("class-3/7.png") // 16
    rows, [(position, reason)], error = worker(chunk)
    assert (len(rows), plan.images.names[chunk * 16 + position], error) == (15, "class-3/7.png", "")
    assert "7.png: not an image" in reason
    _, _, error = worker(0, places=[tmp_path / "not shared"])
    assert "doesn't see" in error
    assert "not shared; expected a path that all machines share" in error
    _, _, error = worker(0, weights="0" * 64)
    assert "sees different weights in the run" in error
    with expect(registry(), None) as expected:
        _, _, error = worker(0, expected=replace(expected, versions={"dml-train": "0"}))
    assert "expected 0, as here. Install identical versions" in error

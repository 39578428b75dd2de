"""Shards measured on a Ray cluster must have the bits of a single call, even if a node dies."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_eval_rs import evaluate, evaluate_shards, knn, knn_shards, verify, verify_shards

ray = pytest.importorskip("ray", reason="Ray isn't installed, or has no wheel for this platform")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nodes(started_nodes: Any) -> Iterator[Any]:
    """Connect once for all tests of this module: the workers of a connection take seconds to
    start.
    """
    started_nodes.restore()
    yield started_nodes
    ray.shutdown()


@pytest.fixture
def data(tmp_path: Path) -> tuple[Any, Any, list[Path]]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 200, 3000)
    x = (rng.normal(size=(200, 16))[labels] + rng.normal(size=(3000, 16))).astype(np.float32)
    paths = [tmp_path / f"{place}.npy" for place in range(5)]
    for path, part in zip(paths, np.array_split(x, 5)):
        np.save(path, part)
    return x, labels, paths


def test_a_cluster_gives_the_bits_of_one_call(
    nodes: Any, data: tuple[Any, Any, list[Path]]
) -> None:
    from dml_eval_rs.adapters.ray import ray_map

    x, labels, paths = data
    found = evaluate_shards(paths, labels, map=ray_map(nodes.address), block=700)
    assert found == evaluate(x, labels)
    pairs = zip(knn_shards(paths, None, 9, map=ray_map(), block=1500), knn(x, None, 9))
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert verify_shards(paths, labels, map=ray_map(), block=700) == verify(x, labels)


def test_an_address_without_a_cluster_is_named_before_work() -> None:
    from dml_eval_rs.adapters.ray import ray_map

    with pytest.raises(ValueError, match=r"no Ray cluster answers at '127\.0\.0\.1:9'"):
        ray_map("127.0.0.1:9")


def test_an_absent_shard_is_named_with_its_machine(nodes: Any, tmp_path: Path) -> None:
    from dml_eval_rs.adapters.ray import ray_map

    with pytest.raises(ValueError, match=r"shards\[0\] .* is absent on .*shared folder"):
        evaluate_shards([tmp_path / "x.npy"], [0, 0], map=ray_map(nodes.address))


def test_another_address_than_that_of_the_connection_is_refused(nodes: Any) -> None:
    from dml_eval_rs.adapters.ray import ray_map

    ray_map(nodes.address)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        message = f"connected to the Ray cluster {nodes.address}; expected .* of {address}"
        with pytest.raises(ValueError, match=message):
            ray_map(address)


def test_a_killed_node_changes_no_bit(nodes: Any, data: tuple[Any, Any, list[Path]]) -> None:
    from dml_eval_rs.adapters.ray import ray_map

    x, labels, paths = data
    on_cluster = ray_map(nodes.address)

    def dying(kind: str, function: Any, tasks: Iterable[Any]) -> Iterator[Any]:
        """Kill a node after the first result of this kind."""
        for result in on_cluster(function, tasks):
            results.append(result)
            if result.key[0] == kind and len(nodes.cluster.worker_nodes) == 2:
                nodes.kill_worker()
            yield result

    nodes.restore()
    results: list[Any] = []
    found, expected = (
        evaluate_shards(paths, labels, map=partial(dying, "count"), block=300),
        evaluate(x, labels),
    )
    assert len(nodes.cluster.worker_nodes) == 1
    assert found == expected
    for name, values_Q in found.per_query.items():
        assert values_Q.tobytes() == expected.per_query[name].tobytes()
    assert len(results) == 5 + 10 + 55  # 5 shards, 10 batches of labels, 55 pairs of blocks

    nodes.restore()
    neighbours = knn_shards(paths, None, 9, map=partial(dying, "search"), block=300)
    assert len(nodes.cluster.worker_nodes) == 1
    assert all(np.array_equal(a, b) for a, b in zip(neighbours, knn(x, None, 9)))

"""The cluster of these tests: three nodes, one of which can be killed and is replaced before the next test."""

from __future__ import annotations

from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="Ray isn't installed, or has no wheel for this platform")

pytestmark = pytest.mark.xdist_group("ray cluster")


def alive(nodes: Any) -> int:
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    return sum(node["Alive"] for node in ray.nodes())


def test_tasks_run_after_a_node_was_killed(ray_nodes: Any) -> None:
    assert alive(ray_nodes) == 3
    square = ray.remote(lambda x: x * x)
    ray_nodes.kill_worker()
    assert ray.get([square.remote(i) for i in range(5)]) == [i * i for i in range(5)]


def test_a_killed_node_is_replaced(ray_nodes: Any) -> None:
    assert alive(ray_nodes) == 3

"""A cluster of three Ray nodes on this machine, loopback only, for the tests of this folder.

A test takes the fixture `ray_nodes` and connects by ``ray.init(address=ray_nodes.address,
log_to_driver=False)``. Starting the nodes takes ten seconds, so these tests are slow.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

LOOPBACK = "127.0.0.2"  # Ray would replace 127.0.0.1 by the machine's address
NODES = 3
NODE = {
    "num_cpus": 1,
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
    "node_ip_address": LOOPBACK,
}
# Ray reads these variables: send no usage statistics, and detect a lost node within seconds.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "4",
}


@dataclass
class RayNodes:
    """Three nodes with a single core: the head, where drivers connect, and 2 workers.

    Attributes:
        cluster: Ray's `Cluster`.
    """

    cluster: Any

    @property
    def address(self) -> str:
        """Return the address for `ray.init` and for `--address`."""
        return str(self.cluster.address)

    def kill_worker(self) -> None:
        """Kill all processes of a worker node together, like a power failure."""
        node = next(iter(self.cluster.worker_nodes))
        self.cluster.remove_node(node, allow_graceful=False)

    def restore(self) -> None:
        """Add nodes until there are three again."""
        while len(self.cluster.worker_nodes) < NODES - 1:
            add_node(self.cluster)
        self.cluster.wait_for_nodes()


def add_node(cluster: Any) -> None:
    """Add a node, and try twice: Ray waits 30 seconds, which is not always enough when a machine is
    busy.
    """
    try:
        cluster.add_node(wait=False, **NODE)
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        cluster.add_node(wait=False, **NODE)


@pytest.fixture(scope="session")
def started_nodes() -> Iterator[RayNodes]:
    """Start the nodes, and finally stop all processes."""
    pytest.importorskip("ray", reason="Ray isn't installed, or has no wheel for this platform")
    if not sys.platform.startswith("linux"):
        pytest.skip(f"{sys.platform} has no address {LOOPBACK}")
    from ray.cluster_utils import Cluster

    # The path of Ray's folder must be short, because it is used for sockets.
    temporary = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
    with temporary as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in {**SETTINGS, "RAY_TMPDIR": folder}.items():
            patch.setenv(name, value)
        Path(folder, "ray").mkdir()  # Ray notes the last cluster's address in this folder
        cluster = Cluster()
        try:
            add_node(cluster)
            nodes = RayNodes(cluster)
            nodes.restore()
            yield nodes
        finally:
            cluster.shutdown()


@pytest.fixture
def ray_nodes(started_nodes: RayNodes) -> Iterator[RayNodes]:
    """Return three running nodes, after replacing killed ones; disconnect the driver after the
    test.
    """
    import ray

    started_nodes.restore()
    yield started_nodes
    ray.shutdown()

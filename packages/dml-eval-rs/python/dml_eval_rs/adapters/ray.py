"""A map over the workers of a Ray cluster, for `evaluate_shards`, `verify_shards` and `knn_shards`."""

from __future__ import annotations

import importlib.metadata
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dml_eval_rs.shards.tasks import VERSION

_ANSWER_SECONDS = 5.0  # for a cluster's address to accept a connection


def ray_map(
    address: str | None = None, *, retries: int = 3, num_cpus: float = 1, waiting: int = 2
) -> Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]:
    """Connect to a Ray cluster and return a map that runs each task on it, for ``map=`` of `evaluate_shards`.

    Results come in the order in which tasks end. Entries that several tasks share are sent to each node once. A task
    runs again elsewhere if its worker or node dies.

    Args:
        address: of the cluster, such as ``"10.0.0.1:6379"`` or ``"auto"``. None: the cluster that this process is
            connected to, else the one that `ray.init` finds, or starts.
        retries: how often a task runs again if its worker dies.
        num_cpus: cores that Ray reserves for a task; give `evaluate_shards` as many `threads`.
        waiting: submitted tasks per core of the cluster, including running tasks.

    Raises:
        ValueError: if no cluster answers at the address, this process is connected to another cluster, or a node has no
            dml-eval-rs or another version.
    """
    if address is not None and address not in ("auto", "local"):
        _check_address(address)
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False)
    _check_nodes()

    def run(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        remote = ray.remote(num_cpus=num_cpus, max_retries=retries)(lambda *entries: function(entries))
        sent: dict[int, tuple[Any, Any]] = {}  # entries by identity, kept so that none is reused

        def send(entry: Any) -> Any:
            if id(entry) not in sent:
                sent[id(entry)] = (entry, ray.put(entry))
            return sent[id(entry)][1]

        running: list[Any] = []
        for task in tasks:
            running.append(remote.remote(*map(send, task)))
            if len(running) >= waiting * max(1, int(ray.cluster_resources().get("CPU", 1) / num_cpus)):
                running, result = _wait(running)
                yield result
        while running:
            running, result = _wait(running)
            yield result

    return run


def _wait(running: list[Any]) -> tuple[list[Any], Any]:
    """Wait for one task; return the others, and its result."""
    done, others = ray.wait(running, num_returns=1)
    try:
        return others, ray.get(done[0])
    except ray.exceptions.RayTaskError as error:
        # Its cause is the task's own error, without the worker's traceback.
        raise error.cause from None


def _check_address(address: str) -> None:
    """Check that something accepts connections at an address, and that this process has no other cluster."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no Ray cluster answers at {address!r} ({error}); expected the address that 'ray start --head' prints"
        ) from None
    if ray.is_initialized() and not address.startswith("ray://"):
        connected = ray.get_runtime_context().gcs_address
        if connected != address:
            raise ValueError(
                f"this process is connected to the Ray cluster {connected}; expected that address instead of "
                f"{address}, or a call of ray.shutdown() before"
            )


def _check_nodes() -> None:
    """Check that every node has this version of the package."""

    def version() -> str:  # pickled by value, so it runs where the package is absent, too
        try:
            return importlib.metadata.version("dml-eval-rs")
        except importlib.metadata.PackageNotFoundError:
            return "absent"

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    strategies = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    probe = ray.remote(num_cpus=0, max_retries=0)(version)
    answers = [probe.options(scheduling_strategy=strategy).remote() for strategy in strategies]
    for node, answer in zip(nodes, answers):
        found = ray.get(answer)
        if found != VERSION:
            raise ValueError(
                f"dml-eval-rs is {found} on the Ray node {node['NodeManagerAddress']}; expected {VERSION}, "
                "as here: install it there, or connect with runtime_env={'pip': [...]}"
            )

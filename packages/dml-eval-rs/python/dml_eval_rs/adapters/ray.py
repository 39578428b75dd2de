"""A map over the workers of a Ray cluster, for `evaluate_shards`, `verify_shards` and `knn_shards`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import ray

from dml_eval_rs.matches.relation import Relation
from dml_eval_rs.shards.tasks import Work

_ANSWER_SECONDS = 5.0  # for a cluster's address to accept a connection


def ray_map(
    address: str | None = None, *, retries: int = 3, num_cpus: float = 1, waiting: int = 2
) -> Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]:
    """Connect to a Ray cluster and return a map that runs tasks on it, for ``map=`` of `evaluate_shards`.

    Results come in the order in which tasks end. Entries that several tasks share are sent to each node once. If a
    worker or node dies, its tasks run again elsewhere.

    Args:
        address: of the cluster, such as ``"10.0.0.1:6379"`` or ``"auto"``. None: the cluster to which this process is
            connected, else the cluster that `ray.init` finds or starts.
        retries: how often to repeat a task whose worker dies.
        num_cpus: cores to reserve for a task; pass as many `threads` to `evaluate_shards`.
        waiting: submitted tasks per core of the cluster, including running tasks.

    Raises:
        ValueError: if no cluster answers at the address, or this process is connected to another cluster.
    """
    if address is not None and address not in ("auto", "local"):
        _check_address(address)
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False)

    def run(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        remote = ray.remote(num_cpus=num_cpus, max_retries=retries)(lambda *entries: function(entries))
        sent: dict[int, tuple[Any, Any]] = {}  # entries by identity, kept so that none is reused

        def send(entry: Any) -> Any:
            if isinstance(entry, (Work, Relation)):  # belongs to one task only, after which Ray drops it
                return entry
            if id(entry) not in sent:
                sent[id(entry)] = (entry, ray.put(entry))
            return sent[id(entry)][1]

        left, running = iter(tasks), list[Any]()
        while True:
            most = waiting * max(1, int(ray.cluster_resources().get("CPU", 1) / num_cpus))
            running += [remote.remote(*map(send, task)) for task in islice(left, max(0, most - len(running)))]
            if not running:
                return
            done, running = ray.wait(running, num_returns=1)
            try:
                result = ray.get(done[0])
            except ray.exceptions.RayTaskError as error:
                # The cause is the error of the task, without the worker's traceback.
                raise error.cause from None
            yield result

    return run


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

"""A map over a Ray cluster's workers, to be used with `evaluate_shards`, `verify_shards` and
`knn_shards`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import ray

from dml_eval_rs.matches.relation import Relation
from dml_eval_rs.shards.tasks import Work

_ANSWER_SECONDS = 5.0  # how long to wait until the cluster accepts a connection


def ray_map(
    address: str | None = None, *, retries: int = 3, num_cpus: float = 1, waiting: int = 2
) -> Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]:
    """Connect to a Ray cluster and return a map that runs tasks there, to be used as the `map` of
    `evaluate_shards`.

    Results are returned in the order in which tasks end. If tasks share entries, these are sent
    only once per node. When a worker or node dies, its tasks run again elsewhere.

    Args:
        address: the cluster's address, such as ``"10.0.0.1:6379"`` or ``"auto"``. By default, use
            the connected cluster if there is one, otherwise the cluster that `ray.init` finds or
            starts.
        retries: how often to repeat a task when a worker dies.
        num_cpus: cores to reserve per task; pass this number as `threads` to `evaluate_shards`.
        waiting: submitted tasks per core of the cluster, including running tasks.

    Raises:
        ValueError: if a cluster does not answer at the address, or this process is connected to a
            different cluster.
    """
    if address is not None and address not in ("auto", "local"):
        _check_address(address)
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False)

    def run(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        remote = ray.remote(num_cpus=num_cpus, max_retries=retries)(
            lambda *entries: function(entries)
        )
        sent: dict[
            int, tuple[Any, Any]
        ] = {}  # by id(entry); entries are kept, so that ids are not reused

        def send(entry: Any) -> Any:
            if isinstance(
                entry, (Work, Relation)
            ):  # only used by this task, so let Ray drop it afterwards
                return entry
            if id(entry) not in sent:
                sent[id(entry)] = (entry, ray.put(entry))
            return sent[id(entry)][1]

        left, running = iter(tasks), list[Any]()
        while True:
            most = waiting * max(1, int(ray.cluster_resources().get("CPU", 1) / num_cpus))
            running += [
                remote.remote(*map(send, task))
                for task in islice(left, max(0, most - len(running)))
            ]
            if not running:
                return
            done, running = ray.wait(running, num_returns=1)
            try:
                result = ray.get(done[0])
            except ray.exceptions.RayTaskError as error:
                # Raise the task's error and drop the worker's traceback.
                raise error.cause from None
            yield result

    return run


def _check_address(address: str) -> None:
    """Check that the address accepts connections, and that this process is not connected to a
    different cluster.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no Ray cluster answers at {address!r} ({error}); expected the address that 'ray "
            "start --head' prints"
        ) from None
    if ray.is_initialized() and not address.startswith("ray://"):
        connected = ray.get_runtime_context().gcs_address
        if connected != address:
            raise ValueError(
                f"this process is already connected to the Ray cluster {connected}; expected this "
                f"address instead of {address}, or call ray.shutdown() first"
            )

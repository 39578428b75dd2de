"""Connect to a Ray cluster, and execute calls on the workers."""

from __future__ import annotations

import math
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dml_core import DmlError, Registry
from dml_train.cluster.workers import Expected, check_missing_package, expect, first_line
from dml_train.extras import extra
from dml_train.processes.signals import handle_signals

_SECONDS_TO_ANSWER = 5.0  # how long to wait for an answer of the cluster's head
# The first bytes of an HTTP/2 client. A gRPC server, such as the head of a cluster, answers with a
# settings frame.
_SETTINGS_FRAME = b"\4"
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS_FRAME + b"\0" * 5
_SECONDS_TO_SAVE = 60.0  # how long to wait for stopped runs to save


@dataclass(frozen=True, slots=True)
class RayCluster:
    """The address of a Ray cluster, and the resources per worker."""

    # ``HOST:PORT`` of the cluster's head; ``"auto"`` to use the cluster that runs on this machine;
    # None to use the environment variable ``RAY_ADDRESS`` or, if it isn't set, a new cluster on
    # this machine.
    address: str | None = None
    cpus: int = 1  # cores and threads per worker
    gpus: float = 0.0  # GPUs per worker; 0.5 lets two workers share a GPU

    @contextmanager
    def connect(self, registry: Registry, shared: Path | None) -> Iterator[Expected]:
        """Connect this process to the cluster, unless it is connected, and yield the requirements
        for workers.

        Raise DmlError if ray isn't installed or no cluster answers within seconds, or UnfitWorker
        if a worker lacks a package.
        """
        ray = _import_ray()
        connected = ray.is_initialized()
        try:
            if not connected:
                with _deferred_interrupt():
                    _connect(ray, self.address)
            with expect(registry, shared) as expected:
                yield expected
        except ray.exceptions.RayError as error:
            check_missing_package(error)
            raise
        finally:
            if not connected:
                with _deferred_interrupt():
                    ray.shutdown()

    def count_workers(self) -> int:
        """Return the number of workers that fit into the connected cluster now; raise DmlError if
        none fits.
        """
        machines = [node["Resources"] for node in _import_ray().nodes() if node["Alive"]]
        count = sum(self._fitting(resources) for resources in machines)
        if count == 0:
            largest = max((node.get("CPU", 0.0) for node in machines), default=0.0)
            raise DmlError(
                f"no machine in the cluster provides the {self.cpus} cores and {self.gpus:g} GPUs "
                f"that a worker needs; the largest has {largest:g} cores",
                arguments=("worker_cpus", "worker_gpus"),
            )
        return count

    def options(self) -> dict[str, Any]:
        """Return the resources of a worker as Ray's options."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus}

    def _fitting(self, resources: dict[str, float]) -> int:
        fitting = int(resources.get("CPU", 0.0) // self.cpus)
        return (
            min(fitting, math.floor(resources.get("GPU", 0.0) / self.gpus))
            if self.gpus
            else fitting
        )


@dataclass(slots=True)
class RayExecutor:
    """An executor on a connected cluster. Pass it to a study as `executor`."""

    cluster: RayCluster  # the resources per call
    # Maximal number of calls that a study submits simultaneously. None submits all, to run as
    # resources permit.
    most: int | None = None
    _references: list[Any] = field(default_factory=list)

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Submit a function. When the worker dies, the future will raise an error, and the caller
        can submit again.
        """
        ray = _import_ray()
        call = ray.remote(_call).options(**self.cluster.options(), max_retries=0)
        reference = call.remote(self.cluster.cpus, function, arguments)
        self._references.append(reference)
        future: Future[Any] = reference.future()
        # Note that cancelling the future will not stop the call: interrupt it as Ctrl-C does, so
        # that a run saves.
        future.add_done_callback(
            lambda ended: ended.cancelled() and ray.cancel(reference, force=False)
        )
        return future

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *error: object) -> None:
        """Wait until cancelled calls have saved."""
        if submitted := self._references:
            _import_ray().wait(submitted, num_returns=len(submitted), timeout=_SECONDS_TO_SAVE)


def _import_ray() -> Any:
    with extra("ray", "the engine 'ray'"):
        import ray
    return ray


@contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Defer a Ctrl-C to the end of this context.

    If `ray.init` is interrupted, `ray.shutdown` doesn't end all threads, and Python crashes at exit
    (SIGSEGV).
    """
    came: list[int] = []
    try:
        with handle_signals([signal.SIGINT], lambda number, frame: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(signal.SIGINT)


def _call(threads: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    torch.set_num_threads(threads)  # the number of threads may change the last bits of a result
    return function(*arguments)


def _connect(ray: Any, address: str | None) -> None:
    """Connect to a cluster, or fail within seconds (Ray itself would try for minutes)."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # for a cluster that this process starts
    wanted = address if address is not None else os.environ.get("RAY_ADDRESS")
    if wanted is not None and wanted not in ("auto", "local"):
        _check_address(wanted)
    try:
        ray.init(address=wanted, logging_level="ERROR", log_to_driver=False)
    except ConnectionError as error:
        raise _no_cluster(wanted or "auto", first_line(error)) from error
    except (
        RuntimeError,
        ValueError,
        OSError,
    ) as error:  # for example different versions of Ray or Python
        raise DmlError(
            f"can't connect to Ray at {wanted or 'this machine'}: {first_line(error)}"
        ) from error


def _check_address(address: str) -> None:
    """Raise DmlError unless a gRPC server, as on the head of a cluster, answers at this address."""
    host, colon, port = address.rpartition(":")
    if "://" in address or not (host and colon and port.isdecimal()):
        raise DmlError(
            f"the address of the Ray cluster is {address!r}; expected HOST:PORT of the head node, "
            "'auto' or 'local'. Ray's client (ray://) doesn't support data sets: run this command "
            "on a machine of the cluster",
            arguments=("address",),
        )
    try:
        with socket.create_connection(
            (host.strip("[]"), int(port)), timeout=_SECONDS_TO_ANSWER
        ) as head:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            head.sendall(_HTTP2_PREFACE)
            answer = head.recv(9)
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from error
    if answer[3:4] != _SETTINGS_FRAME:
        raise _no_cluster(address, "a different server listens there")


def _no_cluster(address: str, reason: str) -> DmlError:
    return DmlError(
        f"no Ray cluster answers at {address}: {reason}. Start one with 'ray start --head', which "
        "prints the address",
        arguments=("address",),
    )

"""A Ray cluster: connecting to it, and an executor of its workers."""

from __future__ import annotations

import math
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dml_core import DmlError, Registry
from dml_train.cluster.workers import Expected, expect, first_line, refuse_missing_package
from dml_train.extras import extra
from dml_train.processes.signals import handle_signals

_SECONDS_TO_ANSWER = 5.0  # of the cluster's address
# How a client greets a gRPC server, such as the head of a cluster, and the type of the frame that answers.
_SETTINGS_FRAME = b"\4"
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS_FRAME + b"\0" * 5
_SECONDS_TO_SAVE = 60.0  # of runs that are asked to stop


@dataclass(frozen=True, slots=True)
class RayCluster:
    """How Ray is used."""

    # ``HOST:PORT`` of the cluster's head; ``"auto"``: the one that runs on this machine; None: that of the
    # environment's ``RAY_ADDRESS``, or else a new one on this machine.
    address: str | None = None
    cpus: int = 1  # cores of each worker, and threads that it computes with
    gpus: float = 0.0  # GPUs of each worker; a half lets two workers share one

    @contextmanager
    def connect(self, registry: Registry, shared: Path | None) -> Iterator[Expected]:
        """Connect this process to the cluster, unless it is connected, and yield what its workers must have.

        Raises:
            UnfitWorker: if a worker lacks a package.
            DmlError: if ray isn't installed, or no cluster answers at the address within seconds.
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
            refuse_missing_package(error)
            raise
        finally:
            if not connected:
                with _deferred_interrupt():
                    ray.shutdown()

    def count_workers(self) -> int:
        """Return the number of workers that fit into the connected cluster now; raise DmlError if none does."""
        machines = [node["Resources"] for node in _import_ray().nodes() if node["Alive"]]
        count = sum(self._fitting(resources) for resources in machines)
        if count == 0:
            largest = max((node.get("CPU", 0.0) for node in machines), default=0.0)
            raise DmlError(
                f"no machine of the cluster has the {self.cpus} cores and {self.gpus:g} GPUs of a worker; "
                f"the largest has {largest:g} cores",
                arguments=("worker_cpus", "worker_gpus"),
            )
        return count

    def options(self) -> dict[str, Any]:
        """Return the resources of a worker as Ray's options."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus}

    def _fitting(self, resources: dict[str, float]) -> int:
        fitting = int(resources.get("CPU", 0.0) // self.cpus)
        return min(fitting, math.floor(resources.get("GPU", 0.0) / self.gpus)) if self.gpus else fitting


@dataclass(slots=True)
class RayExecutor:
    """An executor of a connected cluster, for the argument `executor` of studies."""

    cluster: RayCluster  # the resources of a call
    # Calls that a caller should submit at a time; None: any number, as many as fit run.
    most: int | None = None
    _tasks: list[RayTask] = field(default_factory=list)

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> RayTask:
        """Submit a call. If its worker dies, so does the call: the caller decides whether to repeat it."""
        call = _import_ray().remote(_call).options(**self.cluster.options(), max_retries=0)
        task = RayTask(call.remote(self.cluster.cpus, function, arguments))
        self._tasks.append(task)
        return task

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *error: object) -> None:
        """Wait until cancelled calls have saved."""
        if unfinished := [task.reference for task in self._tasks if not task.done()]:
            _import_ray().wait(unfinished, num_returns=len(unfinished), timeout=_SECONDS_TO_SAVE)


@dataclass(frozen=True, slots=True, eq=False)
class RayTask:
    """A submitted call."""

    reference: Any

    def done(self) -> bool:
        """Return whether the call has ended."""
        ready, _ = _import_ray().wait([self.reference], timeout=0)
        return bool(ready)

    def result(self) -> Any:
        """Return the call's result, or raise its error or that of the death of its worker."""
        return _import_ray().get(self.reference)

    def cancel(self) -> None:
        """Ask the call to stop, as by Ctrl-C."""
        _import_ray().cancel(self.reference, force=False)


def _import_ray() -> Any:
    with extra("ray", "the engine 'ray'"):
        import ray
    return ray


@contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Defer a Ctrl-C to the end of this context.

    An interrupted `ray.init` leaves threads that no `ray.shutdown` ends, and Python then crashes at its exit (SIGSEGV).
    """
    came: list[int] = []
    try:
        with handle_signals([signal.SIGINT], lambda number, frame: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(signal.SIGINT)


def _call(threads: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    torch.set_num_threads(threads)  # the last bits of a result may depend on their number
    return function(*arguments)


def _connect(ray: Any, address: str | None) -> None:
    """Connect to a cluster, or fail within seconds: Ray itself tries for minutes."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # of a cluster that this process starts
    wanted = address if address is not None else os.environ.get("RAY_ADDRESS")
    if wanted is not None and wanted not in ("auto", "local"):
        _refuse_silent(wanted)
    try:
        ray.init(address=wanted, logging_level="ERROR", log_to_driver=False)
    except ConnectionError as error:
        raise _no_cluster(wanted or "auto", first_line(error)) from error
    except (RuntimeError, ValueError, OSError) as error:  # other versions of Ray or Python among them
        raise DmlError(f"can't connect to Ray at {wanted or 'this machine'}: {first_line(error)}") from error


def _refuse_silent(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if "://" in address or not (host and colon and port.isdecimal()):
        raise DmlError(
            f"the address of the Ray cluster is {address!r}; expected HOST:PORT of its head, 'auto' or 'local'. "
            "Ray's client (ray://) can't carry data sets: execute this command on a machine of the cluster",
            arguments=("address",),
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_ANSWER) as there:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            there.sendall(_HTTP2_PREFACE)
            answer = there.recv(9)
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from error
    if answer[3:4] != _SETTINGS_FRAME:
        raise _no_cluster(address, "something else listens there")


def _no_cluster(address: str, reason: str) -> DmlError:
    return DmlError(
        f"no Ray cluster answers at {address}: {reason}. Start one by 'ray start --head', which prints its address",
        arguments=("address",),
    )

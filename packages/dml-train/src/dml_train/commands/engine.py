"""The options of commands that can work on other machines, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dml_core import DmlError, Registry
from dml_train.processes.limits import MOST_PROCESSES

if TYPE_CHECKING:
    from dml_train.cluster.ray_cluster import RayCluster, RayExecutor

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Work on this machine, or on a Ray cluster: pip install 'dml-train[ray]'.",
    ),
    click.option(
        "--address",
        metavar="HOST:PORT",
        help="With --engine ray: the head of the cluster; default: $RAY_ADDRESS, or a new cluster on this machine.",
    ),
    click.option(
        "--worker-cpus",
        type=click.IntRange(1, MOST_PROCESSES),
        help="With --engine ray: cores and threads of each worker; default: 1.",
    ),
    click.option(
        "--worker-gpus",
        type=click.FloatRange(min=0.0),
        help="With --engine ray: GPUs of each worker; 0.5 lets two share one; default: 0.",
    ),
)


def engine_options(command: Command) -> Command:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_engine(
    engine: str, address: str | None, worker_cpus: int | None, worker_gpus: float | None
) -> RayCluster | None:
    """Return the cluster that the options describe; None: this machine.

    Raises:
        DmlError: if options of a cluster are given for this machine.
    """
    given = {"--address": address, "--worker-cpus": worker_cpus, "--worker-gpus": worker_gpus}
    if engine == "local":
        if left := [name for name, value in given.items() if value is not None]:
            raise DmlError(f"{left[0]} was given without --engine ray")
        return None
    from dml_train.cluster.ray_cluster import RayCluster

    return RayCluster(address, worker_cpus or 1, worker_gpus or 0.0)


@contextmanager
def executor(
    cluster: RayCluster | None, registry: Registry, out: Path, most: int | None
) -> Iterator[RayExecutor | None]:
    """Connect to the cluster, and yield its executor of runs; None: this machine trains them.

    Args:
        cluster: the cluster.
        registry: this process's components: workers must have the same packages.
        out: the study's folder, which all machines must see.
        most: runs at a time; None: as many as fit.
    """
    if cluster is None:
        yield None
        return
    from dml_train.cluster.ray_cluster import RayExecutor

    distributions = {"dml-train", "torch", *(p.distribution for p in registry.plugins.providers)}
    with cluster.connect(distributions, out):
        cluster.count_workers()
        with RayExecutor(cluster, most) as runs:
            yield runs

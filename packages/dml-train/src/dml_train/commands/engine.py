"""The options of commands that can work on other machines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import click

from dml_core import DmlError, Registry
from dml_train.commands.options import error_console
from dml_train.processes.limits import MOST_PROCESSES

if TYPE_CHECKING:
    from dml_train.cluster.ray_cluster import RayCluster

Cluster: TypeAlias = "RayCluster | None"  # None for this machine
Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Where to work: this machine, or a Ray cluster (pip install 'dml-train[ray]').",
    ),
    click.option(
        "--address",
        metavar="HOST:PORT",
        help=(
            "With --engine ray: address of the cluster; default: $RAY_ADDRESS, or a new cluster on "
            "this machine."
        ),
    ),
    click.option(
        "--worker-cpus",
        type=click.IntRange(1, MOST_PROCESSES),
        help="With --engine ray: cores and threads per worker; default: 1.",
    ),
    click.option(
        "--worker-gpus",
        type=click.FloatRange(min=0.0),
        help="With --engine ray: GPUs per worker; with 0.5, two workers share a GPU; default: 0.",
    ),
)


def engine_options(command: Command) -> Command:
    """Add the options to a command, which receives them as the argument `cluster`."""

    @functools.wraps(command)
    def with_cluster(
        *arguments: Any,
        engine: str,
        address: str | None,
        worker_cpus: int | None,
        worker_gpus: float | None,
        **options: Any,
    ) -> Any:
        given = {"--address": address, "--worker-cpus": worker_cpus, "--worker-gpus": worker_gpus}
        cluster = None
        if engine == "ray":
            from dml_train.cluster.ray_cluster import RayCluster

            cluster = RayCluster(address, worker_cpus or 1, worker_gpus or 0.0)
        elif left := [name for name, value in given.items() if value is not None]:
            raise DmlError(f"{left[0]} was given without --engine ray")
        return command(*arguments, cluster=cluster, **options)

    wrapped: Any = with_cluster
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return cast("Command", wrapped)


@contextmanager
def study_arguments(
    cluster: Cluster, registry: Registry, out: Path, jobs: int | None
) -> Iterator[dict[str, Any]]:
    """Connect to the cluster, if any, and yield the keyword arguments that all studies share.

    All machines must have the packages in `registry`, and must see the study's folder `out`.
    """
    shared = {"registry": registry, "console": error_console(), "processes": jobs or 1}
    if cluster is None:
        yield shared
        return
    from dml_train.cluster.ray_cluster import RayExecutor

    with cluster.connect(registry, out), RayExecutor(cluster, jobs) as executor:
        cluster.count_workers()
        yield {**shared, "executor": executor}

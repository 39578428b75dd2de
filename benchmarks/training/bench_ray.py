"""`--engine ray` beside plain processes at equal cores, and what a lost machine costs.

A cluster of three nodes on this machine, loopback only: a head without cores, and two nodes of one core each.

1. Embed a folder of glyphs by two processes (`dml embed --shard`, then `--join`) and by two workers of Ray. Rounds
   alternate. Processor time is that of all processes, Ray's own included: its nodes' between the start and the end of
   the command, less what idle nodes use in that time. Nodes don't keep the time of workers that have ended, so all
   are looked at twice a second. A tenth of the glyphs shows what starting costs; the difference is the embedding
   itself.
2. The same with a node killed in the middle: the bytes must be those of one process, and the chunks that arrive are
   counted.
3. Six short runs, with a node killed in the middle: their files must be those of one process.

    python benchmarks/training/bench_ray.py [--images N] [--widths 256,512,512] [--rounds N] [--no-deaths] [--out FILE]
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from datetime import date
from io import StringIO
from pathlib import Path

# Before torch and Ray are imported; workers of Ray set the number of threads themselves.
os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ |= {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "4"}

import psutil
import ray
from PIL import Image
from ray.cluster_utils import Cluster
from rich.console import Console

from dml_core import registry
from dml_train.cluster.ray_cluster import RayCluster, RayExecutor
from dml_train.data.glyphs import draw_glyphs
from dml_train.recipe.loading import load_recipe
from dml_train.studies.runs import Job, run_all
from dml_train.trained.folder import embed_images
from dml_train.trained.images import list_folder
from dml_train.trained.model import open_model
from dml_train.trained.plan import EmbeddingPlan, ThisProcess
from dml_train.trained.ray_engine import RayEngine
from dml_train.training.run import train

QUIET = Console(quiet=True)
TINY = ["dataset.max_classes=40", "sampler.classes_per_batch=8", "logging.loggers=[]", "checkpoints.every=20"]


def write_glyphs(folder: Path, count: int) -> None:
    folder.mkdir()
    for number, glyph in enumerate(draw_glyphs().images[:count]):
        Image.fromarray(255 - glyph).save(folder / f"{number:05}.png")


def start_cluster() -> Cluster:
    common = {"node_ip_address": "127.0.0.2", "include_dashboard": False, "object_store_memory": 150 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **common})
    for _ in range(2):
        cluster.add_node(num_cpus=1, **common)
    cluster.wait_for_nodes()
    return cluster


class NodesClock:
    """The processor time of the cluster's nodes and workers; of ended ones without their last half second."""

    def __init__(self) -> None:
        self._nodes = psutil.Process().children()
        self._seconds: dict[tuple[int, float], float] = {}
        self._look()
        self._before = sum(self._seconds.values())
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look_again, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        for node in self._nodes:
            for process in (node, *node.children(recursive=True)):
                try:
                    times = process.cpu_times()
                    self._seconds[process.pid, process.create_time()] = times.user + times.system
                except psutil.NoSuchProcess:
                    continue

    def _look_again(self) -> None:
        while not self._end.wait(0.5):
            self._look()

    def stop(self) -> float:
        """Return the seconds since the start."""
        self._end.set()
        self._thread.join()
        self._look()
        return sum(self._seconds.values()) - self._before


def own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def dml(*arguments: object, wait: bool = True) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "dml_train", *map(str, arguments)], stdout=subprocess.DEVNULL
    )
    if wait and process.wait() != 0:
        raise RuntimeError(arguments)
    return process


def embed_by_processes(run: Path, images: Path, out: Path) -> tuple[float, float]:
    wall, processor = time.perf_counter(), own_seconds()
    shards = [
        dml("embed", run, images, "--out", out, "--shard", f"{i}/2", "--workers", 0, wait=False)
        for i in (0, 1)
    ]
    for shard in shards:
        if shard.wait() != 0:
            raise RuntimeError("a shard failed")
    dml("embed", run, images, "--out", out, "--join")
    return time.perf_counter() - wall, own_seconds() - processor


def measure_idle_nodes(seconds: float = 15.0) -> float:
    """Return the processor time that the cluster uses in a second of doing nothing."""
    clock = NodesClock()
    time.sleep(seconds)
    return clock.stop() / seconds


def embed_by_ray(run: Path, images: Path, out: Path, address: str, idle: float) -> tuple[float, float]:
    clock, wall, processor = NodesClock(), time.perf_counter(), own_seconds()
    dml("embed", run, images, "--out", out, "--engine", "ray", "--address", address)
    wall = time.perf_counter() - wall
    return wall, own_seconds() - processor + clock.stop() - idle * wall


def kill_node(cluster: Cluster) -> None:
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)


def restore(cluster: Cluster) -> None:
    while len(cluster.worker_nodes) < 2:
        cluster.add_node(num_cpus=1, node_ip_address="127.0.0.2", include_dashboard=False)
    cluster.wait_for_nodes()


def embed_with_a_death(plan: EmbeddingPlan, out: Path, cluster: Cluster) -> int:
    """Embed on the cluster, of which a node dies in the middle; return the number of chunks received."""
    engine, killer, received = RayEngine(RayCluster(cluster.address)), threading.Thread(), 0
    killer = threading.Thread(target=kill_node, args=(cluster,))

    def killing(plan, chunks):
        nonlocal received
        with closing(engine(plan, chunks)) as results:
            for result in results:
                received += 1
                if received == len(chunks) // 3:
                    killer.start()
                yield result

    embed_images(plan, out, killing)
    killer.join()
    return received


def jobs(folder: Path) -> list[Job]:
    recipes = [
        load_recipe(
            "glyphs-tiny",
            [*TINY, 'checkpoints.unit="step"', "training.steps=200", f"training.seed={s}"],
            registry(),
        )
        for s in range(6)
    ]
    return [Job(f"seed {r.training.seed}", r, folder / str(r.training.seed)) for r in recipes]


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "seconds.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def train_with_a_death(folder: Path, cluster: Cluster) -> tuple[float, list[str]]:
    said = Console(file=StringIO(), width=300)

    def kill() -> None:
        while len({path.parents[1] for path in folder.glob("*/checkpoints/*")}) < 2:
            time.sleep(0.1)
        kill_node(cluster)

    killer = threading.Thread(target=kill)
    there, start = RayCluster(cluster.address), time.perf_counter()
    with there.connect(["dml-train"], folder), RayExecutor(there) as executor:
        killer.start()
        outcomes = run_all(jobs(folder), executor=executor, registry=registry(), console=said)
    killer.join()
    if faults := [outcome.fault for outcome in outcomes if outcome.fault]:
        raise RuntimeError(faults)
    return time.perf_counter() - start, said.file.getvalue().splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--widths", default="256,512,512", help="of the network's blocks: the work for a glyph"
    )
    parser.add_argument("--no-deaths", action="store_true", help="omit 2 and 3")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    lines = [
        f"bench_ray.py, {date.today()}: {given.images:,} glyphs of 32 x 32, widths {given.widths}; two cores each way",
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start; ray {ray.__version__}",
        "",
    ]

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    folder = Path(tempfile.mkdtemp(prefix="bench-ray-", dir="/tmp"))
    images, run = folder / "glyphs", folder / "run"
    write_glyphs(images, given.images)
    write_glyphs(folder / "few", given.images // 10)
    network = ["training.steps=2", f"backbone.widths=[{given.widths}]"]
    train(load_recipe("glyphs-tiny", [*TINY, *network], registry()), run, console=QUIET)
    cluster = start_cluster()
    try:
        idle = measure_idle_nodes()
        say(f"three idle nodes use {idle:.3f} s of processor time a second")
        results: dict[tuple[str, Path], list[tuple[float, float]]] = {}
        for number in range(given.rounds):
            for which in (folder / "few", images):
                outs = [folder / f"{name}-{which.name}-{number}.npy" for name in ("processes", "ray")]
                measured = {
                    "processes": embed_by_processes(run, which, outs[0]),
                    "ray": embed_by_ray(run, which, outs[1], cluster.address, idle),
                }
                if outs[0].read_bytes() != outs[1].read_bytes():
                    raise RuntimeError("the bits differ")
                for name, (wall, processor) in measured.items():
                    results.setdefault((name, which), []).append((wall, processor))
                    say(
                        f"round {number}, {name:<9} {which.name:<6} wall {wall:6.1f} s, processor {processor:6.1f} s"
                    )
        for position, what in enumerate(("wall", "processor")):
            least = {key: min(m[position] for m in measured) for key, measured in results.items()}
            few, all_ = (
                {n: least[n, which] for n in ("processes", "ray")} for which in (folder / "few", images)
            )
            say(
                f"least {what}: ray / processes = {all_['ray'] / all_['processes']:.3f} with starting, "
                f"{(all_['ray'] - few['ray']) / (all_['processes'] - few['processes']):.3f} without"
            )

        if given.no_deaths:
            return
        plan = EmbeddingPlan(open_model(run), list_folder(images))
        start = time.process_time()
        embed_images(plan, folder / "one.npy", ThisProcess())
        say(f"one process: {time.process_time() - start:.1f} s of processor time for {len(plan)} chunks")
        received = embed_with_a_death(plan, folder / "killed.npy", cluster)
        same = (folder / "killed.npy").read_bytes() == (folder / "one.npy").read_bytes()
        say(
            f"a node killed after a third: {received} chunks received for {len(plan)}; the bytes of one process: {same}"
        )

        ray.shutdown()
        restore(cluster)
        wall, said = train_with_a_death(folder / "runs" / "ray", cluster)
        run_all(jobs(folder / "alone"), registry=registry(), console=QUIET)
        same = files(folder / "runs" / "ray") == files(folder / "alone")
        say(
            f"six runs, a node killed: {wall:.1f} s; {len(said)} resumed elsewhere; the bytes of one process: {same}"
        )
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        if given.out:
            given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()

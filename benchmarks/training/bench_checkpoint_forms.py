"""Cost of a checkpoint of sharded class weights, and of making the loss: memory and time of each rank.

    python benchmarks/training/bench_checkpoint_forms.py [CLASSES]

ArcFace in float32 with 128 dimensions, AdamW (two moments), gloo on one machine, one thread per rank. Memory is the
peak growth of a rank's resident memory during the operation. The first rank writes the state,
so its cost is shown apart.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from dml_losses import ArcFace, ShardedClasses
from dml_train.ranks.ranks import Ranks
from dml_train.ranks.sharding import Shards
from dml_train.training import checkpoint

DIM = 128
Cost = tuple[int, float]  # bytes, seconds of the processor


def rank(number: int, world_size: int, folder: Path, classes: int, form: str) -> None:
    """Make, save and load as one rank, and save the costs."""
    torch.set_num_threads(1)
    ranks = Ranks(number, world_size, number, world_size)
    if world_size > 1:
        store = distributed.FileStore(str(folder / "store"), world_size)
        distributed.init_process_group("gloo", store=store, rank=number, world_size=world_size)
    costs: dict[str, Cost] = {}

    def measure(name: str, act: Callable[[], Any]) -> Any:
        if world_size > 1:
            distributed.barrier()
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before, spent = memory("VmRSS"), time.process_time()
        result = act()
        costs[name] = max(0, memory("VmHWM") - before), time.process_time() - spent
        return result

    torch.manual_seed(0)
    make = (
        (lambda: ShardedClasses(ArcFace(classes, DIM)))
        if form == "whole"
        else (lambda: ShardedClasses(lambda: ArcFace(classes, DIM)))
    )
    loss = measure("make", make)
    optimizer = torch.optim.AdamW(loss.parameters(), fused=True)
    loss.loss.class_weights.grad = torch.zeros_like(loss.loss.class_weights)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    shards = Shards(loss, optimizer, ranks)

    def save() -> None:
        saved = shards.split_state()
        state = {"loss": saved.loss, "optimizer": saved.optimizer}
        checkpoint.write(folder / "checkpoints", 1, {}, state, saved.rows, ranks)

    def load() -> None:
        found = checkpoint.of_step(folder / "checkpoints", 1)
        state = found.state(mapped=bool(shards))
        shards.load_state(state["loss"], state["optimizer"], found.parts())

    measure("save", save)
    measure("load", load)
    costs["rows"] = (sum(tensor.nbytes for tensor in tensors(loss, optimizer)), 0.0)
    torch.save(costs, folder / str(number))
    if world_size > 1:
        distributed.destroy_process_group()


def tensors(loss: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """List a rank's class weights and moments."""
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [*loss.parameters(), *moments]


def memory(field: str) -> int:
    """Return a field of this process's memory in bytes, as the kernel counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def measure_ranks(world_size: int, classes: int, form: str) -> list[dict[str, Cost]]:
    """Measure the costs of every rank in a world of this size."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dml_losses", "dml_train.training.checkpoint", "torch._dynamo"])
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=rank, args=(number, world_size, Path(folder), classes, form))
            for number in range(world_size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0
        return [torch.load(Path(folder, str(number))) for number in range(world_size)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("classes", type=int, nargs="?", default=1_000_000)
    classes = parser.parse_args().classes
    machine = platform.processor() or platform.machine()
    whole = classes * DIM * 4 * 3 / 2**20
    print(f"{machine}, {len(os.sched_getaffinity(0))} cores, torch {torch.__version__}; {classes:,} classes, "
          f"{DIM} dimensions, AdamW: {whole:.0f} MiB of weights and moments")  # fmt: skip
    print("(whole: class weights drawn whole by each rank; parts: each rank draws its own rows)")
    print(f"{'form':>6} {'ranks':>5} {'rank':>6} {'own MiB':>8}   "
          + "   ".join(f"{name:>5}: MiB  CPU s" for name in ("make", "save", "load")))  # fmt: skip
    for world_size, form in ((1, "whole"), (2, "whole"), (2, "parts"), (4, "whole"), (4, "parts")):
        first, *others = measure_ranks(world_size, classes, form)
        print(row(form, world_size, "first", first))
        if others:
            largest = {name: tuple(max(costs[name][i] for costs in others) for i in (0, 1)) for name in first}
            print(row(form, world_size, "others", largest), flush=True)


def row(form: str, world_size: int, which: str, costs: dict[str, Any]) -> str:
    columns = (f"{costs[name][0] / 2**20:>10.0f} {costs[name][1]:>6.2f}" for name in ("make", "save", "load"))
    return f"{form:>6} {world_size:>5} {which:>6} {costs['rows'][0] / 2**20:>8.0f}   {'   '.join(columns)}"


if __name__ == "__main__":
    main()

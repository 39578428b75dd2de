"""Compare the cost of losses, forward and backward, with a bound or a peer: medians in a single
process.

    python benchmarks/losses/bench_losses.py [--threads 2] [--repeats 9] [--device cuda]

Both sides of a pair alternate, so that other work on the machine affects both. Separate processes
measure peak memory. If pytorch-metric-learning is not installed, the peer's rows are omitted.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import dml_losses as dml

Step = Callable[[], None]
Loss = Callable[[], torch.nn.Module]
SEED = 0
# A larger batch would need gigabytes: the library's NTXentLoss compares each positive with all
# anchors' negatives.
NATIVE_BATCH = 256


def rows(count: int, dim: int = 512, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, dim, dtype=dtype, requires_grad=True)


def step_of(
    loss: torch.nn.Module,
    batch: int,
    labels: torch.Tensor,
    dim: int = 512,
    dtype: torch.dtype = torch.float32,
) -> Step:
    x = rows(batch, dim, dtype)

    def step() -> None:
        x.grad = None
        for parameter in loss.parameters():
            parameter.grad = None
        loss(x, labels).backward()

    return step


def bare_product(batch: int) -> Step:
    x, upstream = rows(batch), torch.randn(batch, batch)

    def step() -> None:
        x.grad = None
        (x @ x.T).backward(upstream)

    return step


def time_in_turns(repeats: int, *steps: Step) -> list[float]:
    """Time the steps alternately to return the median milliseconds."""
    times: list[list[float]] = [[] for _ in steps]
    for turn in range(repeats + 1):
        for step, taken in zip(steps, times):
            started = time.perf_counter()
            step()
            synchronize()
            if turn:  # the first turn warms up
                taken.append(1e3 * (time.perf_counter() - started))
    return [statistics.median(taken) for taken in times]


def synchronize() -> None:
    """Wait until all work submitted to the accelerator is finished."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def show(work: str, beside: str, ours: float, theirs: float, wanted: str) -> None:
    print(
        f"| {work} | {ours:,.1f} | {beside} | {theirs:,.1f} | {ours / theirs:.2f} | "
        f"{theirs / ours:.1f} | {wanted} |",
        flush=True,
    )


def beside_the_product(repeats: int, losses: list[torch.nn.Module], wanted: str) -> None:
    for batch in (512, 2048):
        labels = torch.arange(batch) // 4
        steps = [step_of(loss, batch, labels) for loss in losses]
        bare, *taken = time_in_turns(repeats, bare_product(batch), *steps)
        for loss, ours in zip(losses, taken):
            show(f"{type(loss).__name__}, batch {batch:,}", "bare product", ours, bare, wanted)


def against_peer(repeats: int) -> None:
    from pytorch_metric_learning import losses as pml

    labels = torch.arange(512) // 4
    (slow,) = time_in_turns(1, step_of(pml.NTXentLoss(), 512, labels))
    for loss in (dml.InstanceCrossEntropy(), dml.RankedListLoss()):
        (ours,) = time_in_turns(repeats, step_of(loss, 512, labels))
        show(f"{type(loss).__name__}, batch 512", "PML NTXentLoss", ours, slow, "≥ 200 × faster")
    labels = torch.randint(0, 11318, (512,))
    for mine, peer, wanted in (
        (dml.NormSoftmax(11318, 512), pml.NormalizedSoftmaxLoss(11318, 512), "ratio ≤ 0.7"),
        (dml.ProxyAnchor(11318, 512), pml.ProxyAnchorLoss(11318, 512), "ratio ≤ 0.5"),
    ):
        ours, theirs = time_in_turns(
            repeats, step_of(mine, 512, labels), step_of(peer, 512, labels)
        )
        work = f"{type(mine).__name__}, 11,318 classes, batch 512"
        show(work, f"PML {type(peer).__name__}", ours, theirs, wanted)


def native_losses() -> dict[str, tuple[Loss, Loss]]:
    """Return losses of this package, each with a function that makes the same loss of
    pytorch-metric-learning.
    """
    from pytorch_metric_learning import losses as pml
    from pytorch_metric_learning import miners

    from dml_losses.pml import PytorchMetricLearning as Mined

    def triplets(miner: torch.nn.Module | None = None) -> torch.nn.Module:
        return Mined(pml.TripletMarginLoss(margin=0.2), miner)

    return {
        "Triplet, batch hard": (dml.Triplet, lambda: triplets(miners.BatchHardMiner())),
        "Triplet, batch all": (lambda: dml.Triplet("batch-all"), triplets),
        "Triplet, semi-hard": (
            lambda: dml.Triplet("semi-hard"),
            lambda: triplets(miners.TripletMarginMiner(type_of_triplets="semihard")),
        ),
        "Contrastive": (dml.Contrastive, lambda: Mined(pml.ContrastiveLoss())),
        "MultiSimilarity": (
            dml.MultiSimilarity,
            lambda: Mined(pml.MultiSimilarityLoss(), miners.MultiSimilarityMiner()),
        ),
        "InfoNCE": (dml.InfoNCE, lambda: Mined(pml.NTXentLoss())),
    }


def against_the_same(repeats: int, threads: int, device: str) -> None:
    labels = torch.arange(NATIVE_BATCH) // 4
    for name, sides in native_losses().items():
        ours, theirs = time_in_turns(
            repeats, *(step_of(make(), NATIVE_BATCH, labels) for make in sides)
        )
        show(f"{name}, batch {NATIVE_BATCH}", "PML", ours, theirs, "")
        peaks = [
            run_alone(threads, device, "--native", name, "--side", str(side))[1]
            for side in range(2)
        ]
        show("its peak memory above the interpreter's, MiB", "PML", *peaks, "")


def memvir(repeats: int) -> None:
    for classes in (100, 11318):
        labels = torch.randint(0, classes, (128,))
        wrapped = dml.MemVir(dml.NormSoftmax(classes, 512), num_steps=5, margin=0)
        for _ in range(6):  # until all past steps are in use
            wrapped(torch.randn(128, 512), labels)
        steps = (step_of(loss, 128, labels) for loss in (dml.NormSoftmax(classes, 512), wrapped))
        base, ours = time_in_turns(repeats, *steps)
        work = f"MemVir (N = 5), {classes:,} classes, batch 128"
        show(work, "its base loss", ours, base, "ratio ≤ 36, aim 22")


def million_step(fraction: float) -> Step:
    torch.manual_seed(SEED)
    loss = dml.SampledClasses(dml.NormSoftmax(1_000_000, 128), fraction)
    make = torch.optim.Adam if fraction == 1 else torch.optim.SparseAdam
    optimizer = make(list(loss.parameters()), lr=1e-3)
    step, labels = rows(512, 128), torch.randint(0, 1_000_000, (512,))

    def whole() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(step, labels).backward()
        optimizer.step()

    return whole


def run_alone(threads: int, device: str, *work: str) -> tuple[float, float]:
    """Run this work in a separate process, and return the milliseconds and the peak memory in
    MiB.
    """
    command = [sys.executable, __file__, "--threads", str(threads), "--device", device, *work]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    milliseconds, mebibytes = map(float, printed.split())
    return milliseconds, mebibytes


def million_classes(threads: int, device: str) -> None:
    part, peak = run_alone(threads, device, "--million", "0.01")
    whole, _ = run_alone(threads, device, "--million", "1.0")
    work = "NormSoftmax, 1,000,000 × 128, fraction 0.01, with optimizer"
    show(work, "all classes", part, whole, "≥ 30 × faster")
    state = 3 * 1_000_000 * 128 * 4 / 2**20  # weights and Adam's moments
    work = "its peak memory above the interpreter's, MiB"
    show(work, "weights + optimizer state", peak, state, "ratio ≤ 1.3")


def measure_alone(repeats: int, make: Callable[[], Step]) -> None:
    if torch.get_default_device().type == "cpu":
        # Reset the peak to the memory in use.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = peak_mebibytes()
    (milliseconds,) = time_in_turns(repeats, make())
    print(milliseconds, peak_mebibytes() - before)


def peak_mebibytes() -> float:
    """Return the peak memory of this process in MiB; on an accelerator, only of the tensors.

    Don't use `getrusage`, which starts from the parent's peak.
    """
    if torch.get_default_device().type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--million", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--native", help=argparse.SUPPRESS)
    parser.add_argument("--side", type=int, choices=(0, 1), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_default_device(arguments.device)
    torch.manual_seed(SEED)
    if arguments.million is not None:
        measure_alone(3, lambda: million_step(arguments.million))
        return
    if arguments.native is not None:
        make = native_losses()[arguments.native][arguments.side]
        step_of(make(), 8, torch.arange(8) // 4)()  # imports modules before the measured step
        measure_alone(1, lambda: step_of(make(), NATIVE_BATCH, torch.arange(NATIVE_BATCH) // 4))
        return
    on_gpu = arguments.device == "cuda"
    machine = torch.cuda.get_device_name() if on_gpu else platform.processor() or platform.machine()
    print(
        f"{machine}, {arguments.threads} threads, torch {torch.__version__}, dml-losses "
        f"{dml.__version__}, float32, seed {SEED}; milliseconds, medians of {arguments.repeats}\n"
    )
    print("| work | ours | beside | theirs | ours / theirs | theirs / ours | wanted |")
    print("|---|---|---|---|---|---|---|")
    pairs = [dml.InstanceCrossEntropy(), dml.RankedListLoss()]
    beside_the_product(arguments.repeats, pairs, "ratio ≤ 2, aim 1.3")
    beside_the_product(
        arguments.repeats, [dml.RecallAtKSurrogate(), dml.SmoothAP(), dml.SupAP()], ""
    )
    if importlib.util.find_spec("pytorch_metric_learning") is not None:
        against_peer(arguments.repeats)
        against_the_same(arguments.repeats, arguments.threads, arguments.device)
    memvir(arguments.repeats)
    million_classes(arguments.threads, arguments.device)


if __name__ == "__main__":
    main()

"""Time a step of large batches and of many classes, compared with eager PyTorch, by dtype.

    python benchmarks/losses/bench_scale.py [--device cuda] [--rows 512 16384 65536]
        [--classes 10000 100000 1000000] [--batch 1024]

A step is a forward and a backward pass; the medians of five steps are printed, and on a GPU the
peak memory beyond that before the step. PyTorch multiplies normalised embeddings in their dtype, as
autocast does, so that logits lose digits; it also builds all logits.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from bench_losses import SEED, step_of, time_in_turns
from torch.nn.functional import cross_entropy, linear, normalize

import dml_losses as dml

DIM, TEMPERATURE = 512, 0.05


class EagerSupCon(torch.nn.Module):
    """The supervised contrastive loss in plain PyTorch."""

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        unit_BD = normalize(embeddings)
        logits_BB = (unit_BD @ unit_BD.T).float() / TEMPERATURE
        itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        positive_BB = (labels[:, None] == labels) & ~itself
        log_p = logits_BB.masked_fill(itself, -torch.inf).log_softmax(dim=1)
        return -(log_p.where(positive_BB, 0).sum(dim=1) / positive_BB.sum(dim=1)).mean()


class EagerNormSoftmax(torch.nn.Module):
    """The softmax of cosines in plain PyTorch."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.class_weights = torch.nn.Parameter(torch.randn(num_classes, DIM))

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        weights_CD = normalize(self.class_weights).to(embeddings.dtype)
        logits_BC = linear(normalize(embeddings), weights_CD).float() / TEMPERATURE
        return cross_entropy(logits_BC, labels)


def measure(make: Callable[[], torch.nn.Module], labels: torch.Tensor, dtype: torch.dtype) -> str:
    """Return the milliseconds and the peak memory of the loss's step, as cells of the table."""
    try:
        step = step_of(make(), len(labels), labels, DIM, dtype)
        (milliseconds,) = time_in_turns(5, step)
        if labels.device.type != "cuda":
            return f"{milliseconds:,.1f} |"
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        peak = torch.cuda.max_memory_allocated() - before
        return f"{milliseconds:,.1f} | {peak / 2**20:,.0f}"
    except torch.OutOfMemoryError:
        return "out of memory |"
    finally:
        torch.cuda.empty_cache()


def show(
    work: str,
    labels: torch.Tensor,
    ours: Callable[[], torch.nn.Module],
    eager: Callable[[], torch.nn.Module],
) -> None:
    """Print a row of the table for each dtype."""
    for dtype in (torch.float32, torch.bfloat16):
        cells = " | ".join(measure(make, labels, dtype) for make in (ours, eager))
        print(f"| {work} | {str(dtype).removeprefix('torch.')} | {cells} |", flush=True)


def show_graphs() -> None:
    """Print a table of small batches, with and without a CUDA graph."""
    print("\n| 512 rows | eager, ms | CUDA graph, ms |\n|---|---|---|")
    pairs, classes = torch.arange(512) // 4, torch.randint(0, 11_318, (512,))
    for make, labels in (
        (dml.SupCon, pairs),
        (dml.MultiSimilarity, pairs),
        (dml.InstanceCrossEntropy, pairs),
        (dml.RankedListLoss, pairs),
        (dml.InfoNCE, pairs),
        (dml.SmoothAP, pairs),
        (partial(dml.Triplet, "batch-all"), pairs),
        (partial(dml.NormSoftmax, 11_318, DIM), classes),
        (partial(dml.ProxyAnchor, 11_318, DIM), classes),
    ):
        eager, inside = make(), make()
        example = torch.randn(512, DIM, requires_grad=True)
        graph = torch.cuda.make_graphed_callables(inside, (example, labels))
        steps = [step_of(loss, 512, labels) for loss in (eager, graph)]
        times = [f"{each:.2f}" for each in time_in_turns(9, *steps)]
        print(f"| {type(eager).__name__} | {' | '.join(times)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rows", type=int, nargs="*", default=[512, 16_384, 65_536])
    parser.add_argument("--classes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--batch", type=int, default=1024, help="for classes")
    arguments = parser.parse_args()
    torch.set_default_device(arguments.device)
    torch.manual_seed(SEED)
    on_gpu = arguments.device == "cuda"
    print(f"{torch.cuda.get_device_name() if on_gpu else 'CPU'}, torch {torch.__version__}\n")
    print("| work | embeddings | ours, ms | peak, MiB | PyTorch, ms | peak, MiB |")
    print("|---|---|---|---|---|---|")
    for count in arguments.rows:
        show(
            f"SupCon, {count:,} rows",
            torch.arange(count) // 4,
            partial(dml.SupCon, TEMPERATURE),
            EagerSupCon,
        )
    for classes in arguments.classes:
        show(
            f"NormSoftmax, {classes:,} classes, {arguments.batch:,} rows",
            torch.randint(0, classes, (arguments.batch,)),
            partial(dml.NormSoftmax, classes, DIM, TEMPERATURE),
            partial(EagerNormSoftmax, classes),
        )
    if on_gpu:
        show_graphs()


if __name__ == "__main__":
    main()

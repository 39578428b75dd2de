"""One of two ranks that gather rows over gloo and save the results of `CASES`.

A single process with all rows must agree with the ranks.
"""

from __future__ import annotations

from pathlib import Path

import torch

from dml_core import all_gather_rows
from dml_core.testing.ranks import joined

DIM = 3
CASES: dict[str, list[int]] = {  # the number of rows per rank
    "equal": [4, 4],
    "unequal": [5, 2],
    "none on the first rank": [0, 3],
    "none on any rank": [0, 0],
}


def rows_and_labels(counts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all ranks' rows, (B, DIM) float64, and labels, (B,) int64."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(sum(counts), DIM, generator=generator, dtype=torch.float64)
    return rows, torch.arange(sum(counts))


def loss(rows: torch.Tensor) -> torch.Tensor:
    """Compute a loss that makes a row's gradient depend on all rows."""
    return (rows @ rows.T).tanh().sum()


def train(counts: list[int], gradients: str | None, rank: int) -> dict[str, torch.Tensor]:
    rows, labels = rows_and_labels(counts)
    own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
    leaf = rows[own].clone().requires_grad_()
    given = None if len(set(counts)) == 1 else counts
    options = {} if gradients is None else {"gradients": gradients}
    # Pass a tensor that is not contiguous, if there are multiple rows and columns.
    gathered = all_gather_rows(leaf.T.contiguous().T, given, **options)
    loss(gathered).backward()
    gathered_labels = all_gather_rows(labels[own], given)
    return {"rows": gathered.detach(), "labels": gathered_labels, "gradient": leaf.grad}


def catch_wrong_counts() -> str:
    try:
        all_gather_rows(torch.zeros(2, DIM), [3, 3])
    except ValueError as error:
        return str(error)
    return ""


def gather(rank: int, folder: Path) -> None:
    """Join the other rank, and save the results in the folder."""
    with joined(rank, 2, folder):
        results = {
            (name, gradients): train(counts, gradients, rank)
            for name, counts in CASES.items()
            for gradients in (None, "sum", "mean")
        }
        torch.save({"results": results, "error": catch_wrong_counts()}, folder / str(rank))

"""PCA whitening of a run's embedding, learned from the training images and stored with the run.

Shapes: `N` items, `D` embedding dimension, `W` dimension after whitening.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console

from dml_core import DmlError, Registry
from dml_train.files import write_atomically
from dml_train.networks.model import Whitening
from dml_train.run_folder import RunFolder
from dml_train.training.checkpoint import WEIGHTS, read_manifest
from dml_train.training.run import evaluated_checkpoint, reopen

# Directions with a smaller share of the largest variance only contain rounding errors of float32.
_LEAST_VARIANCE = 1e-9


def learn_whitening(
    run: str | Path,
    dim: int,
    *,
    step: int | None = None,
    registry: Registry | None = None,
    console: Console,
) -> Whitening:
    """Embed a run's training images, learn a whitening to `dim` dimensions, and store it in the
    run's folder.

    `open_model` then applies it. See `open_model` for `step` and `registry`; also raise DmlError if
    `dim` exceeds the rank of the training embeddings.
    """
    folder, experiment = reopen(run, registry, step)
    whitening = fit_whitening(experiment.embed(experiment.train, console), dim)
    digest = read_manifest(evaluated_checkpoint(folder, step).path)[WEIGHTS]["sha256"]
    arrays: dict[str, Any] = {name: buffer.numpy() for name, buffer in whitening.named_buffers()}
    arrays["weights"] = np.array(digest)
    write_atomically(folder.whitening, lambda file: np.savez(file, allow_pickle=False, **arrays))
    return whitening


def fit_whitening(rows_ND: npt.NDArray[np.float32], dim: int) -> Whitening:
    """Learn the whitening from embeddings: W principal directions, divided by the standard
    deviation along each.
    """
    unit_ND = rows_ND / np.linalg.norm(rows_ND, axis=1, keepdims=True).clip(1e-12).astype(
        np.float64
    )
    mean_D = unit_ND.mean(axis=0)
    centred_ND = unit_ND - mean_D
    variance_D, direction_DD = np.linalg.eigh(centred_ND.T @ centred_ND / len(rows_ND))
    most = int((variance_D > _LEAST_VARIANCE * variance_D[-1]).sum()) if variance_D[-1] > 0 else 0
    if not 1 <= dim <= most:
        raise DmlError(
            f"the whitened dimension is {dim}; expected 1 to {most}, the rank of the embeddings of "
            f"the {len(rows_ND):,} training images"
        )
    kept = slice(None, -dim - 1, -1)
    components_WD = (direction_DD[:, kept] / np.sqrt(variance_D[kept])).T
    return Whitening(
        torch.from_numpy(mean_D), torch.from_numpy(np.ascontiguousarray(components_WD))
    )


def read_whitening(folder: RunFolder, weights: str) -> Whitening | None:
    """Read a run's whitening; return None if it is missing, or for weights with a different
    SHA-256.
    """
    if not folder.whitening.is_file():
        return None
    try:
        with folder.whitening.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            if str(stored["weights"]) != weights:
                return None
            return Whitening(
                *(torch.from_numpy(stored[name]) for name in ("mean_D", "components_WD"))
            )
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise DmlError(
            f"{folder.whitening} is damaged ({error}); remove it, or learn it again",
            arguments=("whiten",),
        ) from error


@torch.no_grad()
def whiten(whitening: Whitening, rows_ND: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Apply a whitening to embeddings, (N, D) to (N, W)."""
    rows = torch.tensor(rows_ND, device=whitening.mean_D.device)
    whitened_NW: npt.NDArray[np.float32] = whitening(rows).cpu().numpy()
    return whitened_NW

"""Counter-based random numbers: draws in a run depend only on the run's seed and the place in the
run.

State doesn't pass from step to step, so a checkpoint need not save generator state, and draws don't
depend on restarts, loader processes or the number of ranks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from dml_core.drawing import GOLDEN, splitmix64

# Purposes of seeds. Streams for different purposes are independent.
INITIALISATION, AUGMENTATION, FORWARD, LOSS, VALIDATION = range(1, 6)

_MASK = 0xFFFFFFFFFFFFFFFF


def derive(*counters: int) -> int:
    """Derive a 64-bit seed from the run's seed, a purpose and further counters (step, rank, …), all
    below 2**64.
    """
    word = 0
    for counter in counters:
        word = splitmix64(((word ^ (counter & _MASK)) + GOLDEN) & _MASK)
    return word


def row_seeds(seed: int, step: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Derive the seeds to augment rows of a step's global batch, (R,) uint64.

    Args:
        seed: the run's seed.
        step: step, counted from 0.
        rows: (R,) int64, indices into the global batch.
    """
    return splitmix64(rows.astype(np.uint64) * GOLDEN + derive(seed, AUGMENTATION, step))


def seed_torch(device: torch.device, *counters: int) -> None:
    """Seed torch's generators for the CPU and `device` from these counters."""
    seed = derive(*counters) >> 1  # 63 bits fit every generator
    # torch.manual_seed would be slow here: until CUDA is initialised, every call records a stack
    # trace.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)

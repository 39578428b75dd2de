"""Counter-based random numbers: each draw in a run depends only on the run's seed and the place in the run.

No state passes from one step to the next, so a checkpoint saves no generator state, and draws don't depend on restarts,
loader processes or the number of ranks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

# Purposes of seeds. Streams for different purposes are independent.
INITIALISATION, AUGMENTATION, FORWARD, LOSS, VALIDATION = range(1, 6)

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF


def mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply splitmix64's finaliser elementwise, a bijection on 64-bit words that spreads each bit over the word.

    Source: Steele, Lea & Flood 2014, Fast Splittable Pseudorandom Number Generators, Fig. 16 (Stafford's mix 13).
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def derive(*counters: int) -> int:
    """Derive a 64-bit seed from the run's seed, a purpose and further counters (step, rank, …), each below 2**64."""
    word = np.zeros(1, dtype=np.uint64)
    for counter in counters:
        word = mix((word ^ np.uint64(counter & _MASK)) + np.uint64(_GOLDEN))
    return int(word[0])


def row_seeds(seed: int, step: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Derive the seeds to augment rows of a step's global batch, (R,) uint64.

    Args:
        seed: the run's seed.
        step: step, counted from 0.
        rows: (R,) int64, indices into the global batch.
    """
    return mix(rows.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(derive(seed, AUGMENTATION, step)))


def seed_torch(device: torch.device, *counters: int) -> None:
    """Seed torch's generators for the CPU and `device` from these counters."""
    seed = derive(*counters) >> 1  # 63 bits fit every generator
    # Don't use torch.manual_seed, which records a stack trace for each GPU library that isn't initialised yet.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)

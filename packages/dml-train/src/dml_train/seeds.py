"""Random numbers by counting: every draw of a run is a function of the run's seed and of where it is used.

Nothing is carried from one step to the next, so there is no generator state to save, and neither a restart, nor
the number of loader processes, nor that of ranks changes what is drawn.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

# What a seed is for. Streams of different purposes don't depend on one another.
INITIALISATION, AUGMENTATION, FORWARD, LOSS, VALIDATION = range(1, 6)

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF


def mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64, elementwise: a bijection of 64-bit words that spreads every bit to all others.

    Source: Steele, Lea & Flood 2014, Fast Splittable Pseudorandom Number Generators, Fig. 16 (Stafford's mix 13).
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def derive(*counters: int) -> int:
    """One 64-bit seed from the run's seed, a purpose and further counters (step, rank, …), each below 2**64."""
    word = np.zeros(1, dtype=np.uint64)
    for counter in counters:
        word = mix((word ^ np.uint64(counter & _MASK)) + np.uint64(_GOLDEN))
    return int(word[0])


def row_seeds(seed: int, step: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """The seeds by which rows of a step's global batch are augmented, (len(rows),) uint64.

    Args:
        seed: the run's seed.
        step: counted from 0.
        rows: (R,) places in the global batch.
    """
    return mix(rows.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(derive(seed, AUGMENTATION, step)))


def seed_torch(device: torch.device, *counters: int) -> None:
    """Make what torch draws next, on the CPU and on this device, a function of these counters."""
    seed = derive(*counters) >> 1  # 63 bits fit every generator
    # torch.manual_seed would do, but notes down a stack trace for each GPU library that hasn't started yet.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)

"""Processes that measure together: what `evaluate` asks of whatever connects them."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Peers(Protocol):
    """The processes that share a measurement, as one of them sees them.

    docs/reference/metrics.md has one for torch.distributed; mpi4py's communicator is wrapped as easily.
    """

    @property
    def rank(self) -> int:
        """This one's place, from 0."""
        ...

    @property
    def world_size(self) -> int:
        """How many there are."""
        ...

    def all_gather(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Everybody's (n,) numbers, one after the other in the order of the ranks; n differs from rank to rank."""
        ...

    def all_reduce(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sums over all ranks, entry by entry, of (n,) counts; n is the same everywhere."""
        ...


def check_alike(peers: Peers | None, options: object, *arrays: npt.NDArray[Any] | None) -> None:
    """Checks that every rank came with the same, as far as that can be told without reading all of it.

    Args:
        peers: None for no others.
        options: what has to be the same, with a `repr` that says so.
        arrays: their shapes, dtypes, and first and last rows have to be the same; of one dimension, all of them.

    Raises:
        ValueError: on all ranks, if one differs.
    """
    if peers is None or peers.world_size == 1:
        return
    digest = hashlib.blake2b(repr(options).encode(), digest_size=6)
    for array in arrays:
        if array is not None:
            digest.update(f"{array.shape} {array.dtype}".encode())
            digest.update((array if array.ndim == 1 else array[[0, -1]]).tobytes())
    own = float(int.from_bytes(digest.digest(), "little"))  # 48 bits, which float64 holds
    everybodys = peers.all_gather(np.array([own]))
    if len(everybodys) != peers.world_size:
        raise ValueError(
            f"peers.all_gather returned {len(everybodys)} numbers for one of each of {peers.world_size} ranks; "
            "expected everybody's, one after the other"
        )
    differing = np.flatnonzero(everybodys != everybodys[0])
    if len(differing):
        raise ValueError(
            f"rank {differing[0]} of {peers.world_size} came with other arrays or options than rank 0; expected the "
            "same on every rank: the whole embeddings, gathered, and not each rank's part"
        )

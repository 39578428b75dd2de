"""Processes that share an evaluation, and what `evaluate` asks of them."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Peers(Protocol):
    """The processes that share an evaluation, as seen by one of them.

    docs/reference/metrics.md has an example for torch.distributed; an mpi4py communicator can be wrapped as easily. An
    object without `threads` uses all cores.
    """

    @property
    def rank(self) -> int:
        """Return the rank of this process, from 0."""

    @property
    def world_size(self) -> int:
        """Return the number of processes."""

    @property
    def threads(self) -> int:
        """Return the number of threads for this process; processes on one machine share the cores."""

    def all_gather(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Concatenate the (n,) numbers of all ranks, in the order of the ranks; n may differ between ranks."""

    def all_reduce(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Add up the (n,) counts of all ranks, entry by entry; n is the same on all ranks."""


def check_alike(peers: Peers | None, options: object, *arrays: npt.NDArray[Any] | None) -> None:
    """Check that every rank passed the same arrays and options, without reading whole arrays.

    Args:
        peers: the ranks; None for a single process.
        options: compared by `repr`.
        arrays: compared by shape, dtype, and first and last row; one-dimensional arrays by all entries.

    Raises:
        TypeError: if `rank` or `world_size` isn't an integer, or `all_gather` returns no array of float64.
        ValueError: if the rank is out of range, `all_gather` doesn't return one number per rank, or arguments differ
            (then on all ranks).
    """
    if peers is None:
        return
    rank, world_size = getattr(peers, "rank", None), getattr(peers, "world_size", None)
    if not isinstance(rank, (int, np.integer)) or not isinstance(world_size, (int, np.integer)):
        came = f"peers is a {type(peers).__name__} with rank {rank!r} and world_size {world_size!r}"
        raise TypeError(f"{came}; expected two integers, as dml_eval_rs.Peers has, or no peers")
    if not 0 <= rank < world_size:
        raise ValueError(f"peers has rank {rank} of {world_size}; expected a rank from 0 to world_size - 1")
    if world_size == 1:
        return
    digest = hashlib.blake2b(repr(options).encode(), digest_size=6)
    for array in arrays:
        if array is not None:
            digest.update(f"{array.shape} {array.dtype}".encode())
            digest.update((array if array.ndim == 1 else array[[0, -1]]).tobytes())
    own = float(int.from_bytes(digest.digest(), "little"))  # 48 bits, which float64 holds
    gathered = peers.all_gather(np.array([own]))
    came = getattr(gathered, "dtype", f"a {type(gathered).__name__}")
    if came != np.float64:
        raise TypeError(f"peers.all_gather returned {came}; expected a numpy array of dtype float64")
    if gathered.shape != (world_size,):
        raise ValueError(
            f"peers.all_gather returned shape {gathered.shape} for one number from each of {world_size} ranks; "
            "expected the numbers of all ranks, concatenated"
        )
    if gathered[rank] != own:
        raise ValueError(
            f"peers.all_gather returned a different number for rank {rank} than this rank sent; expected the numbers "
            "of all ranks in the order of the ranks"
        )
    differing = np.flatnonzero(gathered != gathered[0])
    if len(differing):
        raise ValueError(
            f"rank {differing[0]} of {world_size} passed different arrays or options than rank 0; expected the same on "
            "every rank: the whole embeddings, gathered, not only the part of each rank"
        )

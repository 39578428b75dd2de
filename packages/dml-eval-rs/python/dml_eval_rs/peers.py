"""The protocol that processes must implement to share an evaluation."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Peers(Protocol):
    """The processes that share an evaluation, as seen by a single process.

    For an example that uses torch.distributed see docs/reference/metrics.md; an mpi4py communicator
    can be wrapped likewise. When an object lacks `threads`, all cores are used.
    """

    @property
    def rank(self) -> int:
        """Return the rank of this process, from 0."""

    @property
    def world_size(self) -> int:
        """Return the number of processes."""

    @property
    def threads(self) -> int:
        """Return the number of threads for this process; note that processes on a machine share the
        cores.
        """

    def all_gather(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Concatenate the (n,) numbers of all ranks, sorted by rank; n can differ between ranks."""

    def all_reduce(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Add up the (n,) counts of all ranks, entry by entry; n must be equal on all ranks."""


def check_alike(peers: Peers | None, options: object, *arrays: npt.NDArray[Any] | None) -> None:
    """Check that all ranks passed identical arrays and options. To be fast, only the ends of
    matrices are read.

    Args:
        peers: the ranks, or None for a single process.
        options: compared by `repr`.
        arrays: compared by shape, dtype, and first and last row; one-dimensional arrays by all
            entries.

    Raises:
        TypeError: if `rank` or `world_size` is not an integer, or `all_gather` does not return a
            float64 array.
        ValueError: if the rank is out of range, `all_gather` does not return a number per rank, or
            arguments differ (then all ranks raise).
    """
    if peers is None:
        return
    rank, world_size = getattr(peers, "rank", None), getattr(peers, "world_size", None)
    if not isinstance(rank, (int, np.integer)) or not isinstance(world_size, (int, np.integer)):
        came = f"peers is a {type(peers).__name__} with rank {rank!r} and world_size {world_size!r}"
        raise TypeError(f"{came}; expected two integers, see dml_eval_rs.Peers, or no peers")
    if not 0 <= rank < world_size:
        raise ValueError(
            f"peers has rank {rank} of {world_size}; expected a rank from 0 to world_size - 1"
        )
    if world_size == 1:
        return
    digest = hashlib.blake2b(repr(options).encode(), digest_size=6)
    for array in arrays:
        if array is not None:
            digest.update(f"{array.shape} {array.dtype}".encode())
            digest.update((array if array.ndim == 1 else array[[0, -1]]).tobytes())
    own = float(int.from_bytes(digest.digest(), "little"))  # 48 bits fit in float64
    gathered = peers.all_gather(np.array([own]))
    came = getattr(gathered, "dtype", f"a {type(gathered).__name__}")
    if came != np.float64:
        raise TypeError(
            f"peers.all_gather returned {came}; expected a numpy array of dtype float64"
        )
    if gathered.shape != (world_size,):
        raise ValueError(
            f"peers.all_gather returned shape {gathered.shape}; expected ({world_size},), a number "
            "per rank"
        )
    if gathered[rank] != own:
        came = f"peers.all_gather returned a different number for rank {rank} than this rank sent"
        raise ValueError(f"{came}; expected the numbers of all ranks, sorted by rank")
    differing = np.flatnonzero(gathered != gathered[0])
    if len(differing):
        raise ValueError(
            f"rank {differing[0]} of {world_size} passed different arrays or options than rank 0; "
            "expected equal arguments: pass the gathered embeddings of all ranks, not only this "
            "rank's part"
        )

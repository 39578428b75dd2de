"""The compiled core. This module is private: use `dml_eval_rs`, which checks arguments and explains
errors.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, Required, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from dml_eval_rs.matches.relation import Relation
from dml_eval_rs.peers import Peers

_Rows = npt.NDArray[np.float16] | npt.NDArray[np.float32] | npt.NDArray[np.float64]
_Items = _Rows | npt.NDArray[np.uint8]
_Progress = Callable[[int, int], object]
_Columns = tuple[list[tuple[str, npt.NDArray[np.float64], float]], int]

class _Options(Protocol):
    """Options for an evaluation."""

    @property
    def similarity(self) -> str: ...
    @property
    def metrics(self) -> list[str]: ...
    @property
    def ties(self) -> list[str]: ...
    @property
    def zero_unmatched(self) -> bool: ...
    @property
    def threads(self) -> int | None: ...
    @property
    def progress(self) -> _Progress | None: ...
    @property
    def peers(self) -> Peers | None: ...

class _Counted(TypedDict, total=False):
    """The positives of some queries, the negatives counted so far, and how to count."""

    ties: Required[str]
    metrics: Required[list[str]]
    offsets: Required[npt.NDArray[np.uint64]]
    keys: Required[npt.NDArray[np.float64]]
    indices: Required[npt.NDArray[np.uint64]]
    counts: Required[npt.NDArray[np.uint64]]
    threads: int | None

__all__ = [
    "VERSION",
    "advance_searches",
    "ami",
    "ari",
    "begin_pairs",
    "begin_searches",
    "begin_trial",
    "binarize",
    "compute_metrics",
    "count_distances",
    "count_negatives",
    "count_pairs",
    "count_symmetric_negatives",
    "end_trial",
    "evaluate",
    "find_positives",
    "hard_negatives",
    "index_recall",
    "kernels",
    "kmeans",
    "knn",
    "missing_kernels",
    "nmi",
    "pair_scores",
    "range_search",
    "roc_curve",
    "top_pairs",
    "verify",
]

VERSION: Final[str]

def evaluate(
    queries: npt.NDArray[Any],
    gallery: npt.NDArray[Any] | None,
    relations: Sequence[Relation],
    options: _Options,
) -> list[_Columns]: ...

# Offsets of lists, items, and the number of the list per query.
_Lists = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32], npt.NDArray[np.uint32]]

def knn(
    queries: npt.NDArray[Any],
    gallery: npt.NDArray[Any] | None,
    k: int,
    *,
    similarity: str,
    exclude_self: bool = False,
    exclude: npt.NDArray[np.int64] | None = None,
    allowed: _Lists | None = None,
    threads: int | None = None,
    progress: _Progress | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]: ...
def range_search(
    queries: npt.NDArray[Any],
    gallery: npt.NDArray[Any] | None,
    threshold: float,
    *,
    max_results: int,
    similarity: str,
    exclude_self: bool = False,
    exclude: npt.NDArray[np.int64] | None = None,
    allowed: _Lists | None = None,
    threads: int | None = None,
    progress: _Progress | None = None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[Any]]: ...
def index_recall(
    found: npt.NDArray[np.int64],
    queries: npt.NDArray[Any],
    gallery: npt.NDArray[Any] | None,
    k: int,
    *,
    similarity: str,
    exclude_self: bool = False,
    exclude: npt.NDArray[np.int64] | None = None,
    allowed: _Lists | None = None,
    threads: int | None = None,
    progress: _Progress | None = None,
) -> tuple[npt.NDArray[np.float64], float]: ...
def top_pairs(
    embeddings: npt.NDArray[Any],
    n: int,
    *,
    similarity: str,
    threads: int | None = None,
    progress: _Progress | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]: ...
def hard_negatives(
    queries: npt.NDArray[Any],
    gallery: npt.NDArray[Any] | None,
    k: int,
    *,
    labels: tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]] | None = None,
    positives: _Lists | None = None,
    allowed: _Lists | None = None,
    below: str | None,
    margin: float,
    factor: float,
    similarity: str,
    threads: int | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]: ...
def kmeans(
    x: npt.NDArray[Any],
    n_clusters: int,
    *,
    seed: int,
    n_init: int,
    max_iter: int,
    more: npt.NDArray[Any] | None = None,
    unit: bool = False,
    bits: int = 0,
    threads: int | None = None,
    progress: _Progress | None = None,
    peers: Peers | None = None,
) -> tuple[
    npt.NDArray[np.uint32], npt.NDArray[np.float32] | npt.NDArray[np.float64], float, int
]: ...
def nmi(a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32], average: str) -> float: ...
def ami(a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32]) -> float: ...
def ari(a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32]) -> float: ...
def binarize(
    embeddings: _Rows, threshold: float, *, threads: int | None = None
) -> npt.NDArray[np.uint8]: ...
def begin_trial(*, kernel: str | None = None, screen: str | None = None, **sizes: int) -> None: ...
def end_trial() -> dict[str, int]: ...
def kernels() -> list[str]: ...
def missing_kernels() -> list[str]: ...
def find_positives(
    queries: npt.NDArray[Any],
    block: npt.NDArray[Any],
    relation: Relation,
    *,
    similarity: str,
    threads: int | None = None,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64], npt.NDArray[np.uint64]]: ...
def count_negatives(
    queries: npt.NDArray[Any],
    block: npt.NDArray[Any],
    relation: Relation,
    *,
    similarity: str,
    first_item: int = 0,
    **counted: Unpack[_Counted],
) -> npt.NDArray[np.uint64]: ...
def count_symmetric_negatives(
    items: npt.NDArray[Any],
    relation: Relation,
    *,
    similarity: str,
    split: int | None = None,
    first_items: Sequence[int] = (0, 0),
    **counted: Unpack[_Counted],
) -> npt.NDArray[np.uint64]: ...
def compute_metrics(
    relation: Relation, *, zero_unmatched: bool = False, **counted: Unpack[_Counted]
) -> _Columns: ...

_Point = tuple[float, int, int, int, int]
_Counts = npt.NDArray[np.uint64]

def verify(
    embeddings: _Rows,
    labels: npt.NDArray[np.uint32],
    gallery: _Rows | None,
    gallery_labels: npt.NDArray[np.uint32] | None,
    *,
    groups: npt.NDArray[np.uint32] | None,
    gallery_groups: npt.NDArray[np.uint32] | None,
    similarity: str,
    positives: int,
    negatives: int,
    ranks: list[int],
    equal_errors: bool,
    slots: bool,
    threads: int | None = None,
    progress: _Progress | None = None,
    peers: Peers | None = None,
) -> tuple[list[_Point], tuple[npt.NDArray[np.float64], _Counts, _Counts] | None]: ...
def count_distances(
    embeddings: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.uint32],
    gallery: npt.NDArray[np.uint8] | None,
    gallery_labels: npt.NDArray[np.uint32] | None,
    *,
    groups: npt.NDArray[np.uint32] | None,
    gallery_groups: npt.NDArray[np.uint32] | None,
    threads: int | None = None,
    progress: _Progress | None = None,
    peers: Peers | None = None,
) -> tuple[_Counts, _Counts]: ...
def roc_curve(
    scores: npt.NDArray[np.float64], positives: _Counts, negatives: _Counts
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64], int]: ...
def pair_scores(
    items: _Rows | npt.NDArray[np.uint8],
    gallery: _Rows | npt.NDArray[np.uint8] | None,
    pairs: npt.NDArray[np.uint32],
    *,
    similarity: str,
    threads: int | None = None,
) -> npt.NDArray[np.float64]: ...

_Kept = tuple[npt.NDArray[np.float64], npt.NDArray[np.uint64], int]
_Observed = tuple[int, int, npt.NDArray[np.float64], npt.NDArray[np.uint64], int]
_Crossing = tuple[float, int, int]

def begin_pairs(
    queries: _Rows,
    block: _Rows | None,
    relation: Relation,
    *,
    similarity: str,
    first: tuple[int, int],
    zeros: int,
    capacity: int,
    threads: int | None = None,
) -> tuple[npt.NDArray[np.float64], _Kept]: ...
def begin_searches(
    sample: npt.NDArray[np.float64],
    *,
    ranks: list[int],
    equal_errors: bool,
    positives: npt.NDArray[np.float64],
    negatives: int,
    threads: int | None = None,
) -> npt.NDArray[np.float64]: ...
def count_pairs(
    queries: _Rows,
    block: _Rows | None,
    relation: Relation,
    *,
    similarity: str,
    first: tuple[int, int],
    capacity: int,
    ranges: npt.NDArray[np.float64] | None = None,
    positives: npt.NDArray[np.float64] | None = None,
    threads: int | None = None,
) -> tuple[list[_Observed], _Counts | None]: ...
def advance_searches(
    ranges: npt.NDArray[np.float64],
    observed: list[_Observed],
    *,
    ranks: list[int],
    equal_errors: bool,
    positives: npt.NDArray[np.float64],
    negatives: int,
    threads: int | None = None,
) -> tuple[npt.NDArray[np.float64], list[_Crossing | None]]: ...

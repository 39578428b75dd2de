"""The compiled core. Private: use `dml_eval_rs`, which checks arguments and explains errors in them."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dml_eval_rs.metric_names import Columns
from dml_eval_rs.peers import Peers
from dml_eval_rs.relation import Relation

_Rows = npt.NDArray[np.float16] | npt.NDArray[np.float32] | npt.NDArray[np.float64]
_Progress = Callable[[int, int], object]

__all__ = [
    "OPTIMIZED",
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
    "evaluate_codes",
    "evaluate_levels",
    "find_positives",
    "hard_negatives",
    "index_recall",
    "kernels",
    "kmeans",
    "knn",
    "knn_codes",
    "missing_kernels",
    "nmi",
    "pair_scores",
    "range_search",
    "roc_curve",
    "verify",
]

OPTIMIZED: Final[bool]

def evaluate(
    embeddings: _Rows,
    gallery: _Rows | None,
    relation: Relation,
    *,
    similarity: str,
    metrics: list[str],
    ties: Sequence[str],
    zero_unmatched: bool = False,
    threads: int | None = None,
    progress: _Progress | None = None,
    peers: Peers | None = None,
) -> list[Columns]: ...
def evaluate_codes(
    codes: npt.NDArray[np.uint8],
    gallery_codes: npt.NDArray[np.uint8] | None,
    relation: Relation,
    *,
    metrics: list[str],
    ties: Sequence[str],
    zero_unmatched: bool = False,
    threads: int | None = None,
    progress: _Progress | None = None,
    peers: Peers | None = None,
) -> list[Columns]: ...
def evaluate_levels(
    embeddings: npt.NDArray[Any],
    gallery: npt.NDArray[Any] | None,
    relations: list[Relation],
    *,
    similarity: str,
    metrics: list[str],
    ties: str,
    zero_unmatched: bool = False,
    threads: int | None = None,
    progress: _Progress | None = None,
    peers: Peers | None = None,
) -> list[Columns]: ...
def binarize(embeddings: _Rows, threshold: float, *, threads: int | None = None) -> npt.NDArray[np.uint8]: ...
def knn(
    queries: _Rows,
    gallery: _Rows | None,
    k: int,
    *,
    similarity: str,
    exclude_self: bool,
    indices: npt.NDArray[np.int64] | None = None,
    threads: int | None = None,
    progress: _Progress | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]: ...
def knn_codes(
    codes: npt.NDArray[np.uint8],
    gallery_codes: npt.NDArray[np.uint8] | None,
    k: int,
    *,
    exclude_self: bool,
    indices: npt.NDArray[np.int64] | None = None,
    threads: int | None = None,
    progress: _Progress | None = None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]: ...
def hard_negatives(
    embeddings: _Rows,
    labels: npt.NDArray[np.uint32],
    k: int,
    *,
    below: str | None,
    margin: float,
    similarity: str,
    threads: int | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]: ...
def kmeans(
    x: _Rows | npt.NDArray[np.uint8],
    n_clusters: int,
    *,
    seed: int,
    n_init: int,
    max_iter: int,
    more: _Rows | npt.NDArray[np.uint8] | None = None,
    unit: bool = False,
    bits: int = 0,
    threads: int | None = None,
    progress: _Progress | None = None,
    peers: Peers | None = None,
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32] | npt.NDArray[np.float64], float, int]: ...
def nmi(a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32], average: str) -> float: ...
def ami(a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32]) -> float: ...
def ari(a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32]) -> float: ...
def begin_trial(*, kernel: str | None = None, screen: str | None = None, **sizes: int) -> None: ...
def end_trial() -> dict[str, int]: ...
def kernels() -> list[str]: ...
def missing_kernels() -> list[str]: ...

_Items = _Rows | npt.NDArray[np.uint8]

def find_positives(
    queries: _Items,
    gallery: _Items,
    relation: Relation,
    *,
    similarity: str,
    first_item: int,
    threads: int | None = None,
    progress: _Progress | None = None,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64], npt.NDArray[np.uint64]]: ...
def count_negatives(
    queries: _Items,
    gallery: _Items,
    relation: Relation,
    *,
    similarity: str,
    ties: str,
    metrics: list[str],
    first_item: int,
    offsets: npt.NDArray[np.uint64],
    keys: npt.NDArray[np.float64],
    indices: npt.NDArray[np.uint64],
    counts: npt.NDArray[np.uint64],
    threads: int | None = None,
    progress: _Progress | None = None,
) -> npt.NDArray[np.uint64]: ...
def count_symmetric_negatives(
    items: _Items,
    relation: Relation,
    *,
    similarity: str,
    ties: str,
    metrics: list[str],
    blocks: tuple[int | None, list[int]],
    offsets: npt.NDArray[np.uint64],
    keys: npt.NDArray[np.float64],
    indices: npt.NDArray[np.uint64],
    counts: npt.NDArray[np.uint64],
    threads: int | None = None,
    progress: _Progress | None = None,
) -> npt.NDArray[np.uint64]: ...
def compute_metrics(
    ties: str,
    metrics: list[str],
    offsets: npt.NDArray[np.uint64],
    keys: npt.NDArray[np.float64],
    indices: npt.NDArray[np.uint64],
    counts: npt.NDArray[np.uint64],
    *,
    relation: Relation,
    zero_unmatched: bool = False,
    threads: int | None = None,
) -> Columns: ...
def index_recall(
    found: npt.NDArray[np.int64],
    queries: _Rows,
    gallery: _Rows | None,
    k: int,
    *,
    similarity: str,
    exclude_self: bool,
    threads: int | None = None,
    progress: _Progress | None = None,
) -> tuple[npt.NDArray[np.float64], float]: ...
def range_search(
    queries: _Rows,
    gallery: _Rows | None,
    threshold: float,
    *,
    similarity: str,
    exclude_self: bool,
    max_results: int,
    threads: int | None = None,
    progress: _Progress | None = None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]: ...

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
    codes: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.uint32],
    gallery_codes: npt.NDArray[np.uint8] | None,
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
    labels: npt.NDArray[np.uint32],
    block: _Rows,
    block_labels: npt.NDArray[np.uint32],
    *,
    groups: npt.NDArray[np.uint32] | None,
    block_groups: npt.NDArray[np.uint32] | None,
    similarity: str,
    positives: int,
    first_item: int,
    zeros: int,
    capacity: int,
    threads: int | None = None,
) -> tuple[npt.NDArray[np.float64], _Kept]: ...
def begin_searches(
    ranks: list[int],
    equal_errors: bool,
    positives: npt.NDArray[np.float64],
    negatives: int,
    sample: npt.NDArray[np.float64],
    *,
    threads: int | None = None,
) -> npt.NDArray[np.float64]: ...
def count_pairs(
    queries: _Rows,
    labels: npt.NDArray[np.uint32],
    block: _Rows,
    block_labels: npt.NDArray[np.uint32],
    ranges: npt.NDArray[np.float64],
    *,
    positives: npt.NDArray[np.float64],
    slots: bool,
    similarity: str,
    first_item: int,
    capacity: int,
    threads: int | None = None,
) -> tuple[list[_Observed], _Counts | None]: ...
def advance_searches(
    ranks: list[int],
    equal_errors: bool,
    positives: npt.NDArray[np.float64],
    negatives: int,
    ranges: npt.NDArray[np.float64],
    observed: list[_Observed],
    *,
    threads: int | None = None,
) -> tuple[npt.NDArray[np.float64], list[_Crossing | None]]: ...

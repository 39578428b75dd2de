"""The state of a streaming evaluator: positives and counts, checked and joined.

Shapes: `Q` queries, `P` positives of all queries together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.lists import CheckedLists

LISTED = 1 << 32  # items of a gallery whose items are listed
_SORTED = 1 << 20  # positives sorted at a time, but at least one query's
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PartialCounts:
    """The state of an evaluator, to be pickled, sent and merged: a few numbers for each query.

    Attributes:
        fingerprint: a digest of the queries and the options. Only counts with equal fingerprints can be merged.
        found: the ranges of gallery indices whose positives are found.
        counted: the ranges of gallery indices whose negatives are counted.
        offsets: (Q + 1,) the start of each query's positives, and the end of the last.
        keys: (P,) the positives' keys, descending for each query.
        indices: (P,) the positives' indices in the whole gallery.
        counts: (P + Q,) the negatives between the positives; (2P + Q,) with expected ties.
        labels_found, labels_counted: for each 65,536 items of the gallery, a sum over their labels and indices in
            each pass, by which `result` sees labels that differ.
    """

    fingerprint: str
    found: Ranges
    counted: Ranges
    offsets: npt.NDArray[np.uint64]
    keys: npt.NDArray[np.float64]
    indices: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint64]
    labels_found: Mapping[int, int]
    labels_counted: Mapping[int, int]


def check_counts(counts: PartialCounts, queries: int, ties: str, relevant: CheckedLists | None) -> None:
    """Check that counts from elsewhere, which agree in the fingerprint, can be those of an evaluator.

    Raises:
        ValueError: saying what is wrong.
    """
    positives = len(counts.keys)
    wide = 2 if ties == "expected" else 1
    dtypes = [counts.offsets.dtype, counts.keys.dtype, counts.indices.dtype, counts.counts.dtype]
    shapes = [counts.offsets.shape, counts.indices.shape, counts.counts.shape]
    # Before the first block there is a count for each query alone.
    right = [(queries + 1,), (positives,), ((wide if counts.found else 0) * positives + queries,)]
    offsets = counts.offsets.astype(np.float64) if counts.offsets.dtype == np.uint64 else np.zeros(1)
    if dtypes != [np.uint64, np.float64, np.uint64, np.uint64] or shapes != right:
        raise ValueError(
            f"partial counts have the shapes {shapes} and dtypes {dtypes}; expected those of an evaluator"
        )
    if offsets[0] != 0 or offsets[-1] != positives or (np.diff(offsets) < 0).any():
        raise ValueError(
            "partial counts have offsets that don't divide their positives; expected an evaluator's"
        )
    if np.isnan(counts.keys).any():
        raise ValueError("partial counts have a key that is NaN; expected an evaluator's")
    if relevant is not None:
        listed = _pairs(relevant.offsets, relevant.items)
        outside = counts.indices >= LISTED
        if outside.any() or not np.isin(_pairs(counts.offsets, counts.indices), listed).all():
            raise ValueError(
                "partial counts have positives that relevant doesn't list; expected an evaluator's"
            )
    if (counts.counts > count_items(counts.counted)).any():
        raise ValueError(
            f"partial counts have {int(counts.counts.max())} negatives of {count_items(counts.counted)} counted items; "
            "expected at most as many negatives as items"
        )


def add_positives(
    partial: PartialCounts,
    ties: str,
    offsets: npt.NDArray[np.uint64],
    keys: npt.NDArray[np.float64],
    indices: npt.NDArray[np.uint64],
    found: Ranges,
) -> PartialCounts:
    """Return the state with these positives, too; each query's are sorted by key, and of equal keys by index."""
    joined = partial.offsets + offsets
    keys_P, indices_P = np.empty(len(partial.keys) + len(keys)), np.empty(int(joined[-1]), np.uint64)
    # Some queries at a time, so that sorting needs little memory beside the result.
    start, n = 0, len(partial.offsets) - 1
    while start < n:
        fitting = int(np.searchsorted(joined, joined[start] + np.uint64(_SORTED), "right")) - 1
        stop = max(start + 1, fitting)
        old, new = (slice(int(o[start]), int(o[stop])) for o in (partial.offsets, offsets))
        query_p = np.concatenate([_owners(o[start : stop + 1]) for o in (partial.offsets, offsets)])
        key_p = np.concatenate([partial.keys[old], keys[new]])
        index_p = np.concatenate([partial.indices[old], indices[new]])
        order = np.lexsort((index_p, ~order_of(key_p), query_p))
        both = slice(int(joined[start]), int(joined[stop]))
        keys_P[both], indices_P[both] = key_p[order], index_p[order]
        start = stop
    wide = 2 if ties == "expected" else 1
    return replace(
        partial,
        found=found,
        offsets=joined,
        keys=keys_P,
        indices=indices_P,
        counts=np.zeros(wide * len(keys_P) + n, np.uint64),
    )


def _owners(offsets: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    edges = offsets.astype(np.int64)
    return np.repeat(np.arange(len(edges) - 1), edges[1:] - edges[:-1])


def _pairs(offsets: npt.NDArray[np.uint64], items: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return one number for each pair of a query and an item below 2**32."""
    return _owners(offsets) * LISTED + items.astype(np.int64)


def order_of(keys: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return integers in the order of the keys: where subnormal numbers are flushed, they compare as equal."""
    bits = keys.view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


def join_ranges(a: Ranges, b: Ranges) -> Ranges:
    """Join ranges in order, and merge adjoining ones; overlapping ranges are an error."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted((*a, *b)):
        if joined and low < joined[-1][1]:
            raise ValueError(
                f"items {low} to {min(high, joined[-1][1]) - 1} were given before; "
                "expected every item once in each pass"
            )
        if joined and low == joined[-1][1]:
            low = joined.pop()[0]
        joined.append((low, high))
    return tuple(joined)


def count_items(ranges: Ranges) -> int:
    """Count the items of ranges that don't overlap."""
    return sum(high - low for low, high in ranges)

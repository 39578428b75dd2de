"""Checks of the public functions' arguments, and their conversion for the core. Nothing large is copied.

Functions return the converted argument, or raise a TypeError or ValueError that names it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.conversion import to_array, to_labels

_FLOATS = (np.float16, np.float32, np.float64)
_MOST_PLACES = 4  # of a table of integer labels, for each of them: beyond, sorting them takes less time


def embeddings(
    x: object, name: str, rows_of: str = "rows", *, may_be_empty: bool = False
) -> npt.NDArray[Any]:
    """Return a two-dimensional float array, aligned and in native byte order; a mapped file stays mapped."""
    array = to_array(x, name, 2)
    _check_shape(array, name, f"({rows_of}, dim)", "column", may_be_empty)
    if array.dtype.newbyteorder("=").type not in _FLOATS:
        remedy = ""
        if array.dtype == np.uint8:
            remedy = ": binary codes go to evaluate_codes, knn_codes or dml-eval"
        elif array.dtype.kind in "iub":
            remedy = f": use numpy.asarray({name}, dtype=numpy.float32)"
        raise TypeError(f"{name} has dtype {array.dtype}; expected float16, float32 or float64{remedy}")
    return np.require(array, dtype=array.dtype.newbyteorder("="), requirements="A")


def codes(x: object, name: str, *, may_be_empty: bool = False) -> npt.NDArray[np.uint8]:
    """Return a contiguous two-dimensional array of packed bits."""
    array = to_array(x, name, 2)
    if array.dtype != np.uint8:
        raise TypeError(
            f"{name} has dtype {array.dtype}; expected uint8, eight bits per byte: use binarize(embeddings) "
            "or numpy.packbits"
        )
    _check_shape(array, name, "(rows, bytes per code)", "byte", may_be_empty)
    return np.ascontiguousarray(array)


def _check_shape(array: npt.NDArray[Any], name: str, expected: str, column: str, may_be_empty: bool) -> None:
    if array.ndim != 2 or array.shape[1] == 0 or (len(array) == 0 and not may_be_empty):
        least = f"at least one {column}" if may_be_empty else f"at least one row and one {column}"
        raise ValueError(f"{name} has shape {array.shape}; expected {expected} with {least}")


def both_sides(
    queries: object,
    name: str,
    gallery: object | None,
    gallery_name: str,
    *,
    are_codes: bool = False,
    may_be_empty: bool = False,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Return the embeddings, or the codes, of the queries and of the gallery, if there is one, with rows of one length.

    Args:
        queries, gallery: arrays.
        name, gallery_name: the arguments' names.
        are_codes: whether they are codes.
        may_be_empty: whether there may be no query, where there is a gallery.
    """
    queries_QD: npt.NDArray[Any]
    may_be_empty = may_be_empty and gallery is not None
    if are_codes:
        queries_QD = codes(queries, name, may_be_empty=may_be_empty)
    else:
        queries_QD = embeddings(queries, name, "queries", may_be_empty=may_be_empty)
    if gallery is None:
        return queries_QD, None
    gallery_GD = codes(gallery, gallery_name) if are_codes else embeddings(gallery, gallery_name, "items")
    same_width(gallery_GD, gallery_name, queries_QD, name)
    return queries_QD, gallery_GD


def same_width(gallery: npt.NDArray[Any], name: str, queries: npt.NDArray[Any], queries_name: str) -> None:
    """Check that the rows of both arrays have the same length."""
    if gallery.shape[1] != queries.shape[1]:
        raise ValueError(
            f"{name} has shape {gallery.shape}; expected ({gallery.shape[0]}, {queries.shape[1]}) "
            f"to match {queries_name} {queries.shape}"
        )


def labels(x: object, name: str, rows: npt.NDArray[Any], rows_name: str) -> npt.NDArray[Any]:
    """Return a one-dimensional array of integers, booleans or strings, as long as `rows`."""
    array = partition(x, name)
    if len(array) != len(rows):
        remedy = (
            f": use {rows_name}.T if its columns are the items"
            if rows.ndim == 2 and len(array) == rows.shape[1]
            else ""
        )
        raise ValueError(
            f"{name} has shape {array.shape}; expected ({len(rows)},) to match {rows_name} {rows.shape}{remedy}"
        )
    return array


def partition(x: object, name: str) -> npt.NDArray[Any]:
    """Return a one-dimensional array of integers, booleans or strings."""
    array = to_labels(x, name)
    if array.ndim != 1:
        remedy = ""
        if array.ndim == 2:
            remedy = (
                f": use numpy.asarray({name}).ravel()"
                if 1 in array.shape
                else f": use {name}.argmax(axis=1) if one-hot, or relevance_from_labels for several labels an item"
            )
        raise ValueError(
            f"{name} has shape {array.shape}; expected one dimension, with one entry per item{remedy}"
        )
    if array.dtype.kind not in "iubUST":
        hint = (
            "floats merge large ids: use integers"
            if array.dtype.kind == "f"
            else "use integers, booleans or strings"
        )
        raise TypeError(f"{name} has dtype {array.dtype}; expected integers, booleans or strings ({hint})")
    if hasattr(array.dtype, "na_object"):  # of a StringDType, whose missing strings equal nothing
        missing = [place for place, entry in enumerate(array.tolist()) if not isinstance(entry, str)]
        if missing:
            raise ValueError(
                f"{name} has a missing value at index {missing[0]}; expected a label for every item"
            )
    return array


def encode(*parts: npt.NDArray[Any], name: str = "labels") -> list[npt.NDArray[np.uint32]]:
    """Encode labels densely over all parts: two labels get the same code if and only if they are equal."""
    kinds = {_kind(part) for part in parts}
    if len(kinds) > 1:
        raise TypeError(
            f"{name} have dtype "
            + " and ".join(str(part.dtype) for part in parts)
            + "; expected integers on both sides, or strings on both"
        )
    if (
        kinds == {"integer"}
        and any(p.dtype.kind == "u" and p.dtype.itemsize == 8 for p in parts)
        and len(parts) > 1
    ):
        # numpy promotes int64 with uint64 to float64, which merges large ids. No negative id equals any uint64.
        parts = tuple(_as_uint64_pairs(part) for part in parts)
        joined = np.concatenate(parts)
        _, inverse = np.unique(joined, axis=0, return_inverse=True)
    else:
        inverse = _ranks(np.concatenate(parts))
    dense = inverse.reshape(-1).astype(np.uint32, copy=False)
    return np.split(dense, np.cumsum([len(part) for part in parts[:-1]]))


def _ranks(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return each label's rank among the distinct ones. A table serves integers near one another, without sorting."""
    if len(x) > 0 and x.dtype.kind in "iub":
        least, most = int(x.min()), int(x.max())
        if most - least <= _MOST_PLACES * len(x):
            # Of unsigned 64 bits the difference fits into 64 signed ones, the integers themselves may not.
            places = x - least if x.dtype == np.uint64 else x.astype(np.int64) - least
            is_label = np.zeros(most - least + 1, np.bool_)
            is_label[places] = True
            ranks = np.cumsum(is_label, dtype=np.uint32) - np.uint32(1)
            return ranks[places]
    return np.unique(x, return_inverse=True)[1]


def _as_uint64_pairs(part: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return (n, 2): whether each integer is negative, and its bits."""
    wide = part.astype(np.uint64 if part.dtype.kind in "ub" else np.int64)
    return np.stack([(wide < 0).astype(np.uint64), wide.astype(np.uint64)], axis=1)


def _kind(part: npt.NDArray[Any]) -> str:
    return "integer" if part.dtype.kind in "iub" else "string" if part.dtype.kind in "UT" else "bytes"


def counts(x: Iterable[int], name: str) -> list[int]:
    """Return distinct positive integers, in the order given."""
    if not isinstance(x, (int, np.integer, Iterable)):
        raise TypeError(f"{name} is {x!r}; expected integers of at least 1")
    values = [x] if isinstance(x, (int, np.integer)) else list(x)
    checked = [positive(value, f"a K of {name}") for value in values]
    return list(dict.fromkeys(checked))


def positive(x: object, name: str) -> int:
    """Return an integer from 1 to 2**63 - 1."""
    if isinstance(x, (bool, np.bool_)) or not isinstance(x, (int, np.integer)):
        raise TypeError(f"{name} is {x!r}; expected an integer of at least 1")
    if x < 1:
        raise ValueError(f"{name} is {x}; expected at least 1")
    if x >= 2**63:
        raise ValueError(f"{name} is {x}; expected at most 2**63 - 1")
    return int(x)


def seed(x: object) -> int:
    """Return an integer from 0 to 2**64 - 1."""
    if isinstance(x, (bool, np.bool_)) or not isinstance(x, (int, np.integer)):
        raise TypeError(f"seed is {x!r}; expected an integer from 0 to 2**64 - 1")
    if not 0 <= x < 2**64:
        raise ValueError(f"seed is {x}; expected 0 to 2**64 - 1")
    return int(x)


def threads(x: int | None) -> int | None:
    """Return a number of threads, or None for all cores."""
    most = 4096  # more would only cost memory, and the system may refuse to start them
    if x is not None and positive(x, "threads") > most:
        raise ValueError(f"threads is {x}; expected at most {most}, or None for all cores")
    return None if x is None else int(x)


def warn_of_own_gallery(
    queries: npt.NDArray[Any],
    gallery: npt.NDArray[Any] | None,
    name: str,
    gallery_name: str,
    leaving_out: Iterable[object],
) -> None:
    """Warn if the gallery is the queries: each finds itself, and Recall@1 is 1.

    Not if the caller leaves out items, by any argument in `leaving_out` that isn't None.
    """
    if any(argument is not None for argument in leaving_out):
        return
    if gallery is None or gallery.shape != queries.shape or not np.array_equal(gallery[:1], queries[:1]):
        return
    if gallery is queries or np.array_equal(gallery, queries):
        warnings.warn(
            f"{gallery_name} is {name}, so each query finds itself first; omit {gallery_name} and its labels to "
            "search the other queries",
            UserWarning,
            stacklevel=3,
        )


def one_of(x: object, name: str, choices: tuple[str, ...]) -> str:
    """Return one of the allowed names."""
    if not isinstance(x, str):
        raise TypeError(f"{name} is a {type(x).__name__}; expected one of {', '.join(map(repr, choices))}")
    if x not in choices:
        raise ValueError(f"{name} is {x!r}; expected one of {', '.join(map(repr, choices))}")
    return str(x)

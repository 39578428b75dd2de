"""Check the arguments of public functions and convert the arrays for the core; large arrays are not
copied.

This module checks plain numpy arrays; for other containers see `dml_eval_rs.inputs.conversion`.
Functions return the converted argument, or raise a TypeError or ValueError that names the argument.

Shapes: `Q` queries, `G` gallery, `D` dim, `W` bytes per code.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs.conversion import to_array, to_labels

Similarity = Literal["cosine", "dot", "euclidean", "hamming"]
Ties = Literal["index", "optimistic", "pessimistic", "expected"]
Unmatched = Literal["skip", "zero"]
Progress = Callable[[int, int], object]

SIMILARITIES: tuple[Similarity, ...] = get_args(Similarity)
TIES: tuple[Ties, ...] = get_args(Ties)
UNMATCHED: tuple[Unmatched, ...] = get_args(Unmatched)


class Unstated(str):
    """The similarity of a call that does not state one. Bytes are codes or vectors, depending on
    the similarity.
    """

    __slots__ = ()


COSINE: Similarity = cast(Similarity, Unstated("cosine"))  # the default of all functions

_FLOATS = (np.float16, np.float32, np.float64)
_BYTES = (np.int8, np.uint8)
_PLAIN_ROWS = "fiub"  # kinds of dtype that need not be converted
_PLAIN_LABELS = "iubUST"
# The maximum entries per label of a table that ranks integer labels; if it were larger, sorting
# would be faster.
_TABLE_ENTRIES = 4


@dataclass(frozen=True, slots=True)
class Sides:
    """The checked rows of queries and gallery, which must be equally wide."""

    queries: npt.NDArray[Any]  # (Q, D) floats, or (Q, W) uint8 codes
    gallery: npt.NDArray[Any] | None  # (G, D) or (G, W); if None, the queries are searched

    @property
    def items(self) -> npt.NDArray[Any]:
        """The rows to search: the gallery, or else the queries."""
        return self.queries if self.gallery is None else self.gallery

    def keep(self, rows: npt.NDArray[np.uintp] | None) -> Sides:
        """Return both sides, keeping only these rows of `items`, or all if None."""
        if rows is None:
            return self
        kept = self.items[rows]
        return Sides(kept, None) if self.gallery is None else Sides(self.queries, kept)


def to_sides(
    queries: object,
    gallery: object | None,
    similarity: str,
    names: tuple[str, str] = ("queries", "gallery"),
    *,
    may_be_empty: bool = False,
    widens: bool = True,
) -> Sides:
    """Check the similarity and the rows of both sides: codes for ``"hamming"``, otherwise floats.

    Errors use `names` for the arguments. If `may_be_empty` and there is a gallery, there can be 0
    queries. int8 and uint8 vectors become float32, unless `widens` is False.
    """
    one_of(similarity, "similarity", SIMILARITIES)
    may_be_empty = may_be_empty and gallery is not None
    queries_QD = check_rows(
        queries, names[0], similarity, "queries", may_be_empty=may_be_empty, widens=widens
    )
    if gallery is None:
        return Sides(queries_QD, None)
    gallery_GD = check_rows(gallery, names[1], similarity, "items", widens=widens)
    if gallery_GD.shape[1] != queries_QD.shape[1]:
        raise ValueError(
            f"{names[1]} has shape {gallery_GD.shape}; expected ({len(gallery_GD)}, "
            f"{queries_QD.shape[1]}) to match {names[0]} {queries_QD.shape}"
        )
    return Sides(queries_QD, gallery_GD)


def check_rows(
    x: object,
    name: str,
    similarity: str | None,
    rows_of: str = "rows",
    *,
    may_be_empty: bool = False,
    widens: bool = True,
) -> npt.NDArray[Any]:
    """Return aligned floats in native byte order, or contiguous codes; a mapped file stays mapped.

    int8 and uint8 vectors become float32, which represents all values, unless `widens` is False. If
    `similarity` is None, integers raise a TypeError.
    """
    # Dtypes that other packages register can be of the same kind, but must be converted.
    is_plain = type(x) is np.ndarray and x.dtype.kind in _PLAIN_ROWS and x.dtype.isbuiltin < 2
    array: npt.NDArray[Any] = x if is_plain else to_array(x, name, 2)  # type: ignore[assignment]
    codes = similarity == "hamming"
    if array.ndim != 2 or array.shape[1] == 0 or (len(array) == 0 and not may_be_empty):
        form, column = (
            (f"({rows_of}, bytes per code)", "byte") if codes else (f"({rows_of}, dim)", "column")
        )
        least = f"at least one {column}" if may_be_empty else f"at least one row and {column}"
        raise ValueError(f"{name} has shape {array.shape}; expected {form} with {least}")
    if codes:
        if array.dtype != np.uint8:
            raise TypeError(
                f"{name} has dtype {array.dtype}; similarity='hamming' expects uint8 codes, eight "
                f"bits per byte: use binarize({name}) or numpy.packbits"
            )
        return np.ascontiguousarray(array)
    dtype = array.dtype.newbyteorder("=")
    if similarity is not None and dtype.type in _BYTES:
        if dtype.type is np.uint8 and isinstance(similarity, Unstated):
            raise TypeError(
                f"{name} has dtype uint8, but no similarity is given; expected "
                "similarity='hamming' for binary codes, or 'cosine', 'dot' or 'euclidean' for "
                "vectors of numbers from 0 to 255"
            )
        return array.astype(np.float32) if widens else array
    if dtype.type not in _FLOATS:
        remedy = (
            f": use numpy.asarray({name}, dtype=numpy.float32)" if array.dtype.kind in "iub" else ""
        )
        raise TypeError(
            f"{name} has dtype {array.dtype}; expected float16, float32 or float64{remedy}"
        )
    return np.require(array, dtype=dtype, requirements="A")


def widened(dtype: np.dtype[Any], similarity: str) -> np.dtype[Any]:
    """Return the dtype in which rows are compared."""
    return np.dtype(np.float32) if similarity != "hamming" and dtype.type in _BYTES else dtype


def check_length(
    array: npt.NDArray[Any], name: str, rows: npt.NDArray[Any], rows_name: str
) -> None:
    """Raise a ValueError if an array does not have an entry per row."""
    if len(array) != len(rows):
        is_transposed = rows.ndim == 2 and len(array) == rows.shape[1]
        remedy = f": use {rows_name}.T if its columns are the items" if is_transposed else ""
        raise ValueError(
            f"{name} has shape {array.shape}; expected ({len(rows)},) to match {rows_name} "
            f"{rows.shape}{remedy}"
        )


def partition(
    x: object, name: str, length: int | None = None, per: str = "item"
) -> npt.NDArray[Any]:
    """Return a one-dimensional array of integers, booleans or strings. If `length` is given, check
    it.
    """
    is_plain = type(x) is np.ndarray and x.dtype.kind in _PLAIN_LABELS
    array: npt.NDArray[Any] = x if is_plain else to_labels(x, name)  # type: ignore[assignment]
    if array.ndim != 1:
        remedy = ""
        if array.ndim == 2 and 1 in array.shape:
            remedy = f": use numpy.asarray({name}).ravel()"
        elif array.ndim == 2:
            remedy = (
                f": use {name}.argmax(axis=1) if one-hot, or relevance_from_labels for sets of "
                "labels"
            )
        raise ValueError(
            f"{name} has shape {array.shape}; expected one dimension, one per {per}{remedy}"
        )
    if length is not None and len(array) != length:
        raise ValueError(f"{name} has shape {array.shape}; expected ({length},), one per {per}")
    if array.dtype.kind not in "iubUST":
        hint = " (floats merge large ids: use integers)" if array.dtype.kind == "f" else ""
        raise TypeError(
            f"{name} has dtype {array.dtype}; expected integers, booleans or strings{hint}"
        )
    if hasattr(array.dtype, "na_object"):  # a StringDType; missing strings would not equal anything
        missing = [
            place for place, entry in enumerate(array.tolist()) if not isinstance(entry, str)
        ]
        if missing:
            raise ValueError(
                f"{name} has a missing value at index {missing[0]}; expected a label per item"
            )
    return array


def encode(*parts: npt.NDArray[Any], name: str = "labels") -> list[npt.NDArray[np.uint32]]:
    """Encode labels as dense codes over all parts: codes are equal if and only if the labels are
    equal.
    """
    kinds = {_kind(part) for part in parts}
    if len(kinds) > 1:
        dtypes = " and ".join(str(part.dtype) for part in parts)
        raise TypeError(
            f"{name} have dtype {dtypes}; expected integers on both sides, or strings on both"
        )
    joined = np.concatenate(parts)
    if kinds == {"integer"} and joined.dtype.kind == "f":
        # numpy promotes int64 with uint64 to float64, which merges large ids. Negative ids never
        # equal a uint64.
        is_negative = np.concatenate([part < 0 for part in parts])
        bits = _ranks(np.concatenate([part.astype(np.uint64) for part in parts])).astype(np.int64)
        joined = bits + is_negative * len(bits)
    dense = _ranks(joined).reshape(-1).astype(np.uint32, copy=False)
    return np.split(dense, np.cumsum([len(part) for part in parts[:-1]]))


def _ranks(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the labels' ranks in the sorted distinct labels; use a table instead of sorting if
    integers are dense.
    """
    if len(x) > 0 and x.dtype.kind in "iub":
        least, most = int(x.min()), int(x.max())
        if most - least <= _TABLE_ENTRIES * len(x):
            # Differences of unsigned integers fit into int64 here, but the integers may not.
            places = x - least if x.dtype == np.uint64 else x.astype(np.int64) - least
            is_label = np.zeros(most - least + 1, np.bool_)
            is_label[places] = True
            ranks = np.cumsum(is_label, dtype=np.uint32) - np.uint32(1)
            return ranks[places]
    return np.unique(x, return_inverse=True)[1]


def _kind(part: npt.NDArray[Any]) -> str:
    return (
        "integer" if part.dtype.kind in "iub" else "string" if part.dtype.kind in "UT" else "bytes"
    )


def positive(x: object, name: str) -> int:
    """Check and return an integer from 1 to 2**63 - 1."""
    number = _integer(x, name, "of at least 1")
    if not 1 <= number < 2**63:
        raise ValueError(
            f"{name} is {number}; expected at {'least 1' if number < 1 else 'most 2**63 - 1'}"
        )
    return number


def seed(x: object) -> int:
    """Check and return an integer from 0 to 2**64 - 1."""
    number = _integer(x, "seed", "from 0 to 2**64 - 1")
    if not 0 <= number < 2**64:
        raise ValueError(f"seed is {number}; expected 0 to 2**64 - 1")
    return number


def _integer(x: object, name: str, expected: str) -> int:
    if isinstance(x, (bool, np.bool_)) or not isinstance(x, (int, np.integer)):
        raise TypeError(f"{name} is {x!r}; expected an integer {expected}")
    return int(x)


def threads(x: int | None) -> int | None:
    """Check and return a number of threads, or None to use all cores."""
    most = 4096  # more threads would only use memory, or the system may fail to start more
    if x is not None and positive(x, "threads") > most:
        raise ValueError(f"threads is {x}; expected at most {most}, or None to use all cores")
    return None if x is None else int(x)


def warn_of_own_gallery(sides: Sides, names: tuple[str, str], excluding: Iterable[object]) -> None:
    """Warn if the gallery equals the queries and `excluding` is all None, because queries then find
    themselves.
    """
    queries, gallery = sides.queries, sides.gallery
    if (
        gallery is None
        or gallery.shape != queries.shape
        or any(each is not None for each in excluding)
    ):
        return
    if np.array_equal(gallery[:1], queries[:1]) and (
        gallery is queries or np.array_equal(gallery, queries)
    ):
        warn(
            f"{names[1]} is {names[0]}, so each query finds itself first; omit {names[1]} and its "
            "labels to search the other queries"
        )


def warn(message: str) -> None:
    """Warn, reporting the line outside this package that called it."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        "dml_eval_rs."
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)


def one_of(x: object, name: str, choices: tuple[str, ...]) -> str:
    """Check that a name is allowed, and return it."""
    if not isinstance(x, str):
        raise TypeError(
            f"{name} is a {type(x).__name__}; expected one of {', '.join(map(repr, choices))}"
        )
    if x not in choices:
        raise ValueError(f"{name} is {x!r}; expected one of {', '.join(map(repr, choices))}")
    return x if isinstance(x, Unstated) else str(x)

"""The commands `dml-eval truth`, to write exact neighbours to a file, and `dml-eval index`, to
measure an index.

Shapes: `Q` queries, `G` gallery, `D` dim, `K` neighbours.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs.arguments import Unstated, widened
from dml_eval_rs.inputs.files import (
    check_writable,
    load_array,
    replacing,
    save_array,
    stated_similarity,
    with_part,
)
from dml_eval_rs.metrics.tables import Table, Tabular
from dml_eval_rs.search.index_recall import IndexRecall, check_found, index_recall, mean_of
from dml_eval_rs.search.neighbours import range_search
from dml_eval_rs.shards.search import knn_shards

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
# Bytes per query and neighbour: 20 for the result, 20 for a block's neighbours, and the rest to
# join both.
_BYTES = 100
_ALLOWED = "a .npy file of (n,) booleans: which items of the base can be found"
_RANKS = 1, 10, 100
_WORST = 10  # the number of queries with the lowest recall to list


def add_truth(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `dml-eval truth`."""
    parser.description = (
        "Write the exact neighbours of queries, or all items in a range, to a file."
    )
    add = parser.add_argument
    add("base", help="the items to search, (n, dim): .fbin, .fvecs, .npy, .hdf5, …, see load_array")
    add("queries", help="the queries, (n, dim), in a file of any of these formats")
    add("-k", type=int, default=100, help="the number of neighbours per query; default: 100")
    add(
        "--out",
        type=Path,
        required=True,
        help="the file to write: .ibin, .ivecs or .npy; with --range: .npz",
    )
    add(
        "--similarities",
        type=Path,
        metavar="FILE",
        help="also write similarities: .fbin, .fvecs or .npy",
    )
    distance = (
        "write all items with at least this similarity (hamming: up to this distance) instead of "
        "neighbours"
    )
    add("--range", type=float, metavar="SIMILARITY", help=distance)
    add("--exclude-self", action="store_true", help="query i excludes item i")
    add("--allowed", metavar="FILE", help=_ALLOWED)
    limit = (
        "memory for rows and results, in addition to about 200 MiB; for example 4GB; default: "
        "256MiB"
    )
    add("--memory", type=_bytes, default=_bytes("256MiB"), metavar="SIZE", help=limit)
    parser.set_defaults(run=write_truth)


def add_index(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `dml-eval index`."""
    parser.description = (
        "Measure the recall of an approximate index, compared with exact search or stored truth."
    )
    add = parser.add_argument
    add(
        "found",
        help="the index's results, (queries, k or more) integers: .ivecs, .ibin, .npy, .hdf5",
    )
    add("--base", help="the items that the index searched")
    add("--queries", help="the queries, to be used with --base")
    add(
        "--truth",
        help="in place of --base and --queries: the exact neighbours, as written by dml-eval truth",
    )
    add(
        "--truth-similarities",
        metavar="FILE",
        help="the similarities of --truth, so that tied items count",
    )
    add(
        "-k",
        type=int,
        action="append",
        help="can be repeated; default: 1, 10 and 100, if the index returned as many",
    )
    add("--exclude-self", action="store_true", help="query i excludes item i; use with --base")
    add("--allowed", metavar="FILE", help=f"{_ALLOWED}; use with --base")
    parser.set_defaults(run=measure_index)


def _bytes(text: str) -> int:
    """Read a size such as 4GB or 512MiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?B|)", text.upper())
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; expected a number with KB, MB, GB, KiB, MiB or GiB"
        )
    return int(float(match[1]) * _UNITS[match[2]])


def _shared(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of the searches; the similarity can be stated in the file of the
    base.
    """
    if isinstance(options.similarity, Unstated):
        options.similarity = stated_similarity(options.base) or options.similarity
    shared = {
        name: getattr(options, name)
        for name in ("similarity", "exclude_self", "threads", "progress")
    }
    return shared | ({"allowed": load_array(options.allowed)} if options.allowed else {})


def write_truth(options: argparse.Namespace) -> str:
    """Write the exact neighbours, or the items in a range, and return a line that says what was
    written.
    """
    base, queries = with_part(options.base, "train"), with_part(options.queries, "test")
    items, asking = load_array(base), load_array(queries)
    shared = _shared(options)
    if options.range is None:
        for path in filter(None, (options.out, options.similarities)):
            check_writable(path)
        row = items[:1].size * widened(items.dtype, options.similarity).itemsize
        block = choose_block(options.memory, row, len(asking), options.k)
        similarities, indices = knn_shards([queries], [base], options.k, block=block, **shared)
        save_array(options.out, indices)
        if options.similarities:
            save_array(options.similarities, similarities)
        what = f"{options.k} neighbours"
    else:
        check_writable(options.out, (".npz",))
        if options.similarities:
            raise ValueError(
                "--range and --similarities are both given; expected only --range with --out "
                "FILE.npz"
            )
        offsets, indices, similarities = range_search(asking, items, options.range, **shared)
        with replacing(options.out) as file:
            np.savez(file, offsets=offsets, indices=indices, similarities=similarities)
        what = f"{len(indices):,} items"
    return (
        f"{options.out}: {what} for {len(asking):,} queries in {len(items):,} "
        f"({options.similarity})"
    )


def choose_block(memory: int, row: int, queries: int, k: int) -> int:
    """Return the most rows, of `row` bytes, per block, so that two blocks and all results fit into
    memory.
    """
    result = _BYTES * k
    free = memory - queries * result
    together = (
        free // row - queries
    )  # rows of a block of items, if all queries fit into a single block
    block = together if together >= queries else free // (2 * row + result)
    if block < 1:
        needed = queries * result + 2 * row + result
        raise ValueError(
            f"--memory is {memory:,} bytes; expected at least {needed:,} for {queries:,} × {k} "
            "neighbours"
        )
    return block


@dataclass(frozen=True)
class IndexReport(Tabular):
    """Recall at several ranks, and the queries with the lowest recall at the last rank."""

    recalls: dict[int, IndexRecall]

    @property
    def worst(self) -> dict[int, float]:
        """Return the recall per query of the queries with the lowest recall, if it is below 1."""
        per_query = list(self.recalls.values())[-1].per_query
        order = np.argsort(per_query, kind="stable")[:_WORST]
        return {int(query): float(per_query[query]) for query in order if per_query[query] < 1}

    def to_dict(self) -> dict[str, Any]:
        """Return the recall per rank and the number of queries."""
        found: dict[str, Any] = {
            f"index recall@{k}": recall.recall for k, recall in self.recalls.items()
        }
        return {
            **found,
            "n_queries": len(next(iter(self.recalls.values())).per_query),
            "worst_queries": self.worst,
        }

    def table(self) -> Table:
        """Return the recall per rank with an interval, and the worst queries."""
        rows = []
        for k, recall in self.recalls.items():
            interval = recall.confidence_interval()
            rows.append(
                (
                    f"index recall@{k}",
                    f"{recall.recall:.4f}",
                    f"{interval.low:.4f} to {interval.high:.4f}",
                )
            )
        rows += [(f"query {query}", f"{value:.4f}", "") for query, value in self.worst.items()]
        return Table(rows, ("", "recall", "95 % interval"))


def measure_index(options: argparse.Namespace) -> IndexReport:
    """Measure an index's results, compared with the items, or with stored truth."""
    found = load_array(with_part(options.found, "neighbors"))
    if found.ndim != 2:
        raise ValueError(f"{options.found} has shape {found.shape}; expected (queries, k)")
    columns = found.shape[1] - options.exclude_self
    ranks = sorted(set(options.k or [k for k in _RANKS if k <= columns] or [columns]))
    if options.truth:
        if options.base or options.queries or options.exclude_self or options.allowed:
            raise ValueError("--truth is given with an option of --base; expected only --truth")
        truth = load_array(with_part(options.truth, "neighbors"))
        similarities = (
            None if options.truth_similarities is None else load_array(options.truth_similarities)
        )
        if similarities is not None and options.similarity == "hamming":
            similarities = -similarities.astype(np.int64)
        return IndexReport({k: recall_from_truth(found, truth, k, similarities) for k in ranks})
    if not (options.base and options.queries):
        raise ValueError("--base or --queries is missing; expected both, or --truth")
    sides = (
        load_array(with_part(options.queries, "test")),
        load_array(with_part(options.base, "train")),
    )
    shared = _shared(options)
    return IndexReport({k: index_recall(found, *sides, k, **shared) for k in ranks})


def recall_from_truth(
    found: npt.NDArray[Any],
    truth: npt.NDArray[Any],
    k: int,
    similarities: npt.NDArray[Any] | None = None,
) -> IndexRecall:
    """Compute an index's recall from stored neighbours.

    Without similarities, only the k stored neighbours are correct; with similarities, stored
    neighbours that tie with the k-th are, too. Missing neighbours (−1) do not count.

    Args:
        found: (Q, k or more) integers, see `index_recall`.
        truth: (Q, k or more) gallery indices, nearest first.
        k: the number of neighbours.
        similarities: as `truth`, highest first.
    """
    found_QK = check_found(found, len(truth), k)[:, :k]
    if truth.ndim != 2 or truth.shape[1] < k or truth.dtype.kind not in "iu":
        raise ValueError(
            f"truth has shape {truth.shape} and dtype {truth.dtype}; expected (queries, {k} or "
            "more) integers"
        )
    counts_QT = np.broadcast_to(np.arange(truth.shape[1]) < k, truth.shape)
    if similarities is not None:
        if similarities.shape != truth.shape:
            raise ValueError(
                f"similarities has shape {similarities.shape}; expected {truth.shape} to match "
                "truth"
            )
        counts_QT = similarities >= similarities[:, k - 1 : k]
    per_query = np.empty(len(truth))
    for query, (ids, nearest, counts) in enumerate(zip(found_QK, truth, counts_QT)):
        ids = ids[ids >= 0]
        if len(np.unique(ids)) < len(ids):
            raise ValueError(f"found row {query} contains an index twice; expected each index once")
        exist = np.count_nonzero(nearest[:k] >= 0)
        per_query[query] = (
            np.isin(ids, nearest[counts & (nearest >= 0)]).sum() / exist if exist else np.nan
        )
    return IndexRecall(k=k, recall=mean_of(per_query), per_query=per_query)

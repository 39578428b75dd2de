"""Compute pair losses in blocks of rows of the similarity product.

A pair loss only depends on the cosines S = Q̂Ĝᵀ, so its gradient follows from a matrix of weights
W = ∂L/∂S:
∂L/∂Q̂ = W Ĝ,
∂L/∂Ĝ = Wᵀ Q̂. For each block of rows, the loss computes its terms (its value, and W in place of S).
A single pass computes value and gradients, so that no (Q × G) matrix is stored, and operations run
in cache.

Rows are first sorted by label. The positives of a block then lie in a narrow range of columns. Only
this range needs masks and logarithms, since all other columns are negatives.

Shapes: `Q` queries, `G` gallery, `D` dim, `R` rows per block, `P` columns that can contain
positives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from dml_losses.exchange import BlocksOfRank, all_reduce_
from dml_losses.functional.products import (
    ALL_PARTS,
    add_product_,
    left_factor,
    multiply,
    pays_in_parts,
    right_factor,
    split,
)
from dml_losses.functional.sphere import at_least_float32, inverse_norms, through_norm_

# The size of a block. On a CPU, the similarities should fit in the caches, and few rows should need
# few columns for their positives. On an accelerator, this only limits memory, to 256 MiB in float32
# for each of about five buffers: usual batches need one launch.
_CPU_BLOCK_ELEMENTS, CPU_BLOCK_ROWS, BLOCK_ELEMENTS = 2**19, 128, 2**26


@dataclass(frozen=True, slots=True)
class Block:
    """Some queries and the complete gallery.

    Args:
        similarity: (R, G); the loss must overwrite it with the weights ∂L/∂S.
        columns: the range of columns that can contain positives; all other columns are negatives.
        same: (R, P) bool, whether query and gallery row have the same label, including the query
            itself.
        positive: (R, P) bool, like `same` without the query itself.
        num_positives: (R,), the number of positives per query, in the dtype of `similarity`.
        num_pairs: (), the number of (query, positive) pairs in this call, at least 1, in the same
            dtype.
        num_matched: (), the number of queries with a positive in this call, in the same dtype.
        num_queries: the number of queries in this call.
    """

    similarity: torch.Tensor
    columns: slice
    same: torch.Tensor
    positive: torch.Tensor
    num_positives: torch.Tensor
    num_pairs: torch.Tensor
    num_matched: torch.Tensor
    num_queries: int


class WeightedQueries(NamedTuple):
    """The losses of a block's queries, for a loss that is the mean over all queries with weights
    e^w_q / Σ e^w_q.

    Weights are constants. The similarities are overwritten with ∂(Σ losses)/∂S. Only queries can
    have a gradient.
    """

    losses: torch.Tensor  # (R,)
    log_weights: torch.Tensor  # (R,): w_q, -inf for a query without weight


class Average(NamedTuple):
    """A block's sum and count, for a loss that is the total sum divided by the total count.

    Use it if the count depends on the similarities. They are overwritten with ∂(sum)/∂S; the count
    is a constant.
    """

    total: torch.Tensor  # ()
    number: torch.Tensor  # (), the count in the dtype of the similarities


@dataclass(frozen=True, slots=True)
class _Side:
    """Queries or gallery, sorted by label."""

    order: torch.Tensor | None  # (N,); None if rows were already sorted
    unit: torch.Tensor  # (N, D), unit rows in at least float32
    labels: torch.Tensor  # (N,)
    inverse_norm: torch.Tensor  # (N,)

    @classmethod
    def of(cls, rows: torch.Tensor, labels: torch.Tensor, *, ordered: bool) -> _Side:
        order = None if ordered else torch.argsort(labels, stable=True)
        if order is not None:
            rows, labels = rows[order], labels[order]
        rows = rows.to(at_least_float32(rows.dtype))
        inverse_norm = inverse_norms(rows)
        return cls(order, rows * inverse_norm[:, None], labels, inverse_norm)

    def restore_order(self, gradient: torch.Tensor) -> torch.Tensor:
        return (
            gradient
            if self.order is None
            else torch.empty_like(gradient).index_copy_(0, self.order, gradient)
        )


def value_and_gradients(
    terms: Callable[[Block], torch.Tensor | Average | WeightedQueries],
    queries: torch.Tensor,
    query_labels: torch.Tensor,
    gallery: torch.Tensor,
    gallery_labels: torch.Tensor,
    *,
    within: bool,
    query_gradient: bool,
    gallery_gradient: bool,
    queries_ordered: bool = False,
    cpu_block_rows: int = CPU_BLOCK_ROWS,
    symmetric: bool = False,
    share: BlocksOfRank | None = None,
    num_learned: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute a loss of cosines, and the gradients with respect to queries and gallery.

    Args:
        terms: returns a block's share of the loss, an `Average`, or `WeightedQueries`, and
            overwrites similarities with derivatives. If numbers are learned, it returns shares of
            the loss and of the derivatives with respect to these numbers, (1 + num_learned,).
        queries, gallery: (Q, D) and (G, D), not normalised; both in float64, or each in any other
            floating dtype.
        query_labels, gallery_labels: (Q,) and (G,), int64.
        within: whether the queries are also the gallery; then they exclude themselves by index,
            `gallery` is ignored, and the sum of both gradients is returned as the queries'
            gradient.
        query_gradient, gallery_gradient: whether to compute this gradient.
        queries_ordered: whether the query labels are already sorted, which saves a copy of the
            rows.
        cpu_block_rows: the largest number of queries per block on a CPU. More queries have
            positives in more columns.
        symmetric: with `within`, whether the derivatives for (i, j) and (j, i) are equal, so that
            doubling the gradient as a query replaces adding the gradient as a gallery row.
        share: compute only these blocks; the ranks exchange values and gradients.
        num_learned: the number of learned numbers.

    Returns:
        The loss, a scalar (with `num_learned`, the loss and the derivatives), and the two
        gradients, all in at least float32; a gradient that isn't requested is empty.
    """
    query = _Side.of(queries, query_labels, ordered=queries_ordered)
    other = query if within else _Side.of(gallery, gallery_labels, ordered=False)
    num_queries, num_gallery = query.unit.shape[0], other.unit.shape[0]
    like = query.inverse_norm  # has the dtype of sums
    in_parts = pays_in_parts(query.unit, num_gallery)
    left_Q, right_G = left_factor(query.unit, in_parts), right_factor(other.unit, in_parts)
    # A gradient that will be rounded to half precision needs fewer parts.
    query_parts, gallery_parts = (
        ALL_PARTS - (side.dtype != like.dtype) if in_parts and moves else 0
        for side, moves in ((queries, query_gradient), (gallery, gallery_gradient))
    )
    parts_G = split(other.unit, query_parts)
    first_Q = torch.searchsorted(other.labels, query.labels)
    last_Q = torch.searchsorted(other.labels, query.labels, right=True)
    num_positives_Q = (last_Q - first_Q - int(within)).to(like.dtype)
    num_pairs = num_positives_Q.sum().clamp_min(1)
    num_matched = (num_positives_Q > 0).sum().to(like.dtype)

    # If the queries are also the gallery, one buffer accumulates both gradients.
    dim, moved = query.unit.shape[1], num_gallery if gallery_gradient or within else 0
    gradient_GD = like.new_zeros(moved, dim)
    gradient_QD = (
        gradient_GD if within else like.new_empty(num_queries if query_gradient else 0, dim)
    )
    if num_gallery == 0:
        gradient_QD.zero_()
    # Reading the range of columns is free on a CPU. On an accelerator it would wait for the device,
    # but masks over all columns are cheap.
    narrow = queries.device.type == "cpu"
    elements, most = (
        (_CPU_BLOCK_ELEMENTS, cpu_block_rows) if narrow else (BLOCK_ELEMENTS, num_queries)
    )
    step = min(most, max(16, elements // max(num_gallery, 1)))
    starts = range(0, num_queries if num_gallery else 0, step) if share is None else share.starts
    values: list[torch.Tensor] = []
    averaged = False
    weighted: list[WeightedQueries] = []
    for start in starts:
        rows = slice(start, min(start + starts.step, num_queries))
        columns = slice(0, num_gallery)
        if narrow:  # at least one column, so that a row always has a maximum
            first = min(int(first_Q[rows.start]), num_gallery - 1)
            columns = slice(first, max(int(last_Q[rows.stop - 1]), first + 1))
        same_RP = query.labels[rows, None] == other.labels[None, columns]
        positive_RP = same_RP
        if within:
            positive_RP = same_RP.clone()
            positive_RP.diagonal(rows.start - columns.start).fill_(False)
        similarity_RG = multiply(left_Q[rows], right_G)
        block_value = terms(
            Block(
                similarity_RG,
                columns,
                same_RP,
                positive_RP,
                num_positives_Q[rows],
                num_pairs,
                num_matched,
                num_queries,
            )
        )
        if isinstance(block_value, WeightedQueries):
            weighted.append(block_value)
        else:
            averaged = isinstance(block_value, Average)
            values.append(
                torch.stack(block_value) if isinstance(block_value, Average) else block_value
            )
        parts_RG = split(similarity_RG, max(query_parts, gallery_parts))
        if gallery_gradient and not symmetric:
            columns_GR = tuple(part.T for part in parts_RG)
            add_product_(gradient_GD, columns_GR, split(query.unit[rows], gallery_parts))
        if query_gradient:
            alpha, beta = 2 if symmetric else 1, int(within)
            add_product_(gradient_QD[rows], parts_RG, parts_G, alpha=alpha, beta=beta)
            if not within:
                inverse_R = query.inverse_norm[rows]
                through_norm_(gradient_QD[rows], query.unit[rows], inverse_R, unit=True)
    value = (
        torch.stack(values)
        if values
        else like.new_zeros((0, 1 + num_learned) if num_learned else 0)
    )
    value = (value if share is None else share.gather_blocks(value)).sum(dim=0)
    if averaged:
        value, count = value[0], value[1].clamp_min(1)
        value = value / count
        for gradient in (gradient_GD,) if within else (gradient_QD, gradient_GD):
            gradient /= count
    if weighted:
        assert not gallery_gradient, "WeightedQueries can only scale gradients of queries"
        losses_Q, log_weights_Q = (torch.cat(parts) for parts in zip(*weighted, strict=True))
        share_Q = torch.softmax(log_weights_Q, dim=0).nan_to_num_(
            nan=0.0
        )  # NaN if no query has a weight
        value = share_Q @ losses_Q
        gradient_QD *= share_Q[:, None] if query_gradient else 1
    if share is not None and within and query_gradient:
        gradient_GD = share.gather_rows(gradient_GD) if symmetric else all_reduce_(gradient_GD)
    if share is not None and not within:
        gradient_QD = share.gather_rows(gradient_QD) if query_gradient else gradient_QD
        gradient_GD = all_reduce_(gradient_GD) if gallery_gradient else gradient_GD
    if gallery_gradient or (within and query_gradient):
        through_norm_(gradient_GD, other.unit, other.inverse_norm, unit=True)
    if within:
        return value, query.restore_order(gradient_GD), like.new_empty(0, dim)
    return (
        value,
        query.restore_order(gradient_QD) if query_gradient else gradient_QD,
        other.restore_order(gradient_GD) if gallery_gradient else gradient_GD.clone(),
    )

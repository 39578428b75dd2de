"""The similarity product of every pair loss, computed by blocks of queries.

A pair loss is a function of the cosines S = Q̂Ĝᵀ alone, so its gradient is a matrix of weights W = ∂L/∂S, and
∂L/∂Q̂ = W Ĝ, ∂L/∂Ĝ = Wᵀ Q̂. A loss supplies its terms for one block of rows (its value, and W in place of S);
this module supplies the blocks. One pass computes value and gradients, so that no (Q × G) matrix is ever held and
every elementwise pass runs in cache.

Rows are sorted by their labels first. A block's positives then lie in a narrow range of columns, and only that range
needs the masks and the logarithms; all columns outside it are negatives.

Shapes: `Q` queries, `G` gallery, `D` dim, `R` rows of a block, `P` columns that may hold positives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from dml_losses.exchange import BlocksOfRank
from dml_losses.functional.sphere import inverse_norms, through_norm_

# The size of a block. On a CPU, as many similarities as its caches hold, and so few rows that few columns have their
# positives; on an accelerator, a bound on memory (1 GiB in float32) that any usual batch fits in one launch.
_CPU_BLOCK_ELEMENTS, CPU_BLOCK_ROWS, _BLOCK_ELEMENTS = 2**19, 128, 2**28


@dataclass(frozen=True, slots=True)
class Block:
    """Some queries and the whole gallery.

    Args:
        similarity: (R, G); the loss overwrites it with its weights ∂L/∂S.
        columns: the range of columns that may hold positives; all others are negatives.
        same: (R, P) bool, whether query and gallery row have the same label, the query itself included.
        positive: (R, P) bool, the same without the query itself.
        num_positives: (R,), the number of positives of each query, in `similarity`'s dtype.
        num_pairs: (), the number of (query, positive) pairs of the whole call, at least 1, in that dtype.
        num_matched: (), the number of queries with a positive in the whole call, in that dtype.
        num_queries: the number of queries in the whole call.
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
    """The queries' losses in a block, where the loss of the call is their mean with weights e^w_q / Σ e^w_q.

    Weights are constants. The block's similarities then hold ∂(Σ losses)/∂S; only queries may have a gradient.
    """

    losses: torch.Tensor  # (R,)
    log_weights: torch.Tensor  # (R,): w_q, -inf for a query without weight


@dataclass(frozen=True, slots=True)
class _Side:
    """Queries or gallery, sorted by their labels."""

    order: torch.Tensor | None  # (N,); None for rows that were already sorted
    rows: torch.Tensor  # (N, D)
    labels: torch.Tensor  # (N,)
    inverse_norm: torch.Tensor  # (N,)

    @classmethod
    def of(cls, rows: torch.Tensor, labels: torch.Tensor, *, ordered: bool) -> _Side:
        if ordered:
            return cls(None, rows, labels, inverse_norms(rows))
        order = torch.argsort(labels, stable=True)
        rows = rows[order]
        return cls(order, rows, labels[order], inverse_norms(rows))

    def unit(self, rows: slice = slice(None)) -> torch.Tensor:
        return self.rows[rows] * self.inverse_norm[rows, None]

    def restore_order(self, gradient: torch.Tensor) -> torch.Tensor:
        return (
            gradient
            if self.order is None
            else torch.empty_like(gradient).index_copy_(0, self.order, gradient)
        )


def value_and_gradients(
    terms: Callable[[Block], torch.Tensor | WeightedQueries],
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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute a loss of cosines, and its gradients with respect to queries and gallery.

    Args:
        terms: given a block, returns its share of the loss, or `WeightedQueries`, and overwrites the similarities with
            the derivatives.
        queries, gallery: (Q, D) and (G, D), one dtype, not normalised.
        query_labels, gallery_labels: (Q,) and (G,), int64.
        within: whether the gallery is the queries themselves, so that each omits itself by index. Then `gallery` is
            ignored, and the two gradients are added up and returned as the queries'.
        query_gradient, gallery_gradient: whether to compute that side's gradient.
        queries_ordered: whether the query labels are in ascending order, which saves a copy of the rows.
        cpu_block_rows: the largest number of queries in a block on a CPU: more have positives in more columns.
        symmetric: within a batch, whether the derivative for (i, j) is that for (j, i), so that a row's gradient is
            twice that of the row as a query.
        share: compute these blocks alone, of a symmetric loss within a batch; the value is theirs, the gradient whole.

    Returns:
        The loss, a scalar, and the two gradients; one that wasn't asked for is empty.
    """
    query = _Side.of(queries, query_labels, ordered=queries_ordered)
    other = query if within else _Side.of(gallery, gallery_labels, ordered=False)
    num_queries, num_gallery = query.rows.shape[0], other.rows.shape[0]
    gallery_GD = other.unit()
    first_Q = torch.searchsorted(other.labels, query.labels)
    last_Q = torch.searchsorted(other.labels, query.labels, right=True)
    num_positives_Q = (last_Q - first_Q - int(within)).to(queries.dtype)
    num_pairs = num_positives_Q.sum().clamp_min(1)
    num_matched = (num_positives_Q > 0).sum().to(queries.dtype)

    value = queries.new_zeros(())
    # Within a batch, one buffer accumulates the gradients of both sides.
    gradient_GD = torch.zeros_like(gallery_GD) if gallery_gradient or within else gallery_GD[:0]
    gradient_QD = (
        gradient_GD if within else torch.empty_like(query.rows if query_gradient else query.rows[:0])
    )
    if num_gallery == 0:
        gradient_QD.zero_()
    # Reading the range of columns is free on a CPU. On an accelerator it would wait for the device, and masks over all
    # columns are cheap.
    narrow = queries.device.type == "cpu"
    elements, most = (_CPU_BLOCK_ELEMENTS, cpu_block_rows) if narrow else (_BLOCK_ELEMENTS, num_queries)
    step = min(most, max(16, elements // max(num_gallery, 1)))
    starts = range(0, num_queries if num_gallery else 0, step) if share is None else share.starts
    weighted: list[WeightedQueries] = []
    for start in starts:
        rows = slice(start, min(start + starts.step, num_queries))
        columns = (
            slice(int(first_Q[rows.start]), int(last_Q[rows.stop - 1])) if narrow else slice(0, num_gallery)
        )
        same_RP = query.labels[rows, None] == other.labels[None, columns]
        positive_RP = same_RP
        if within:
            positive_RP = same_RP.clone()
            positive_RP.diagonal(rows.start - columns.start).fill_(False)
        query_RD = gallery_GD[rows] if within else query.unit(rows)
        similarity_RG = query_RD @ gallery_GD.T
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
            value += block_value
        if gallery_gradient and not symmetric:
            gradient_GD.addmm_(similarity_RG.T, query_RD)
        if query_gradient:
            if within:
                gradient_QD[rows].addmm_(similarity_RG, gallery_GD, alpha=2 if symmetric else 1)
            else:
                torch.mm(similarity_RG, gallery_GD, out=gradient_QD[rows])
                through_norm_(gradient_QD[rows], query_RD, query.inverse_norm[rows], unit=True)
    if weighted:
        assert not gallery_gradient, "the weights of the queries scale the queries' gradients alone"
        losses_Q, log_weights_Q = (torch.cat(parts) for parts in zip(*weighted, strict=True))
        share_Q = torch.softmax(log_weights_Q, dim=0).nan_to_num_(nan=0.0)  # no query has weight: all are 0
        value = share_Q @ losses_Q
        gradient_QD *= share_Q[:, None] if query_gradient else 1
    if share is not None and query_gradient:
        gradient_GD = share.gather_rows(gradient_GD)
    if gallery_gradient or (within and query_gradient):
        through_norm_(gradient_GD, gallery_GD, other.inverse_norm, unit=True)
    if within:
        return value, query.restore_order(gradient_GD), gallery[:0].clone()
    return (
        value,
        query.restore_order(gradient_QD) if query_gradient else gradient_QD,
        other.restore_order(gradient_GD) if gallery_gradient else gradient_GD.clone(),
    )

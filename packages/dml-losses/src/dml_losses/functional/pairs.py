"""The similarity product under every pair loss, taken a block of queries at a time.

A pair loss is a function of the similarities S = Q Gᵀ alone, so its gradient is a matrix of weights
W = ∂L/∂S, and ∂L/∂Q = W G, ∂L/∂G = Wᵀ Q. A loss supplies its terms for one block of rows (its value, and W
in place of S); this module supplies the blocks. Value and gradients come out of one pass, so that no (Q × G)
matrix is ever held and every elementwise pass runs in cache.

Rows are put in order of their labels first. A block's positives then lie in a narrow range of columns, and
only that range needs the masks and the logarithms; everything outside it is a negative.

Shapes: `Q` queries, `G` gallery, `D` dim, `R` rows of a block, `P` columns that may hold positives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dml_losses.arguments import check_batch, check_gallery
from dml_losses.functional.sphere import full_precision, unit_rows

# Similarities at a time. On a CPU, what its caches hold, and few enough rows that their positives are few columns;
# on an accelerator, what bounds memory (1 GiB in float32) and is still one launch for any batch in use.
_CPU_BLOCK_ELEMENTS, _CPU_BLOCK_ROWS, _BLOCK_ELEMENTS = 2**19, 128, 2**28


@dataclass(frozen=True, slots=True)
class Block:
    """Some queries against the whole gallery.

    Args:
        similarity: (R, G), which the loss overwrites with its weights ∂L/∂S.
        columns: the columns outside which there are only negatives.
        same: (R, P) bool, whether query and gallery row have one label, the query itself included.
        positive: (R, P) bool, the same without the query itself.
        num_positives: (R,), how many positives each query has, in `similarity`'s dtype.
        num_pairs: (), how many (query, positive) pairs the whole call has, at least 1, likewise.
        num_queries: how many queries the whole call has.
    """

    similarity: torch.Tensor
    columns: slice
    same: torch.Tensor
    positive: torch.Tensor
    num_positives: torch.Tensor
    num_pairs: torch.Tensor
    num_queries: int


def value_and_gradients(
    terms: Callable[[Block], torch.Tensor],
    queries: torch.Tensor,
    query_labels: torch.Tensor,
    gallery: torch.Tensor,
    gallery_labels: torch.Tensor,
    *,
    within: bool,
    query_gradient: bool,
    gallery_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A pair loss and its gradients with respect to queries and gallery.

    Args:
        terms: given a block, returns its share of the loss and overwrites the similarities with ∂L/∂S.
        queries, gallery: (Q, D) and (G, D), one dtype.
        query_labels, gallery_labels: (Q,) and (G,), integer.
        within: whether the gallery is the queries themselves, so that each leaves itself out by index.
        query_gradient, gallery_gradient: whether that gradient is wanted.

    Returns:
        The loss, a scalar, and the two gradients; an unwanted one is empty.
    """
    query_order = torch.argsort(query_labels, stable=True)
    gallery_order = query_order if within else torch.argsort(gallery_labels, stable=True)
    queries_QD, labels_Q = queries[query_order], query_labels[query_order]
    gallery_GD, labels_G = (
        (queries_QD, labels_Q) if within else (gallery[gallery_order], gallery_labels[gallery_order])
    )
    first_Q = torch.searchsorted(labels_G, labels_Q)
    last_Q = torch.searchsorted(labels_G, labels_Q, right=True)
    num_positives_Q = (last_Q - first_Q - int(within)).to(queries.dtype)
    num_pairs = num_positives_Q.sum().clamp_min(1)

    num_queries, num_gallery = queries_QD.shape[0], gallery_GD.shape[0]
    value = queries.new_zeros(())
    query_gradient_QD = torch.zeros_like(queries_QD if query_gradient else queries[:0])
    gallery_gradient_GD = torch.zeros_like(gallery_GD if gallery_gradient else gallery[:0])
    # Reading the range of columns costs nothing on a CPU and would stall an accelerator, where the masks over
    # all columns are cheap.
    narrow = queries.device.type == "cpu"
    step = (
        min(_CPU_BLOCK_ROWS, max(16, _CPU_BLOCK_ELEMENTS // max(num_gallery, 1)))
        if narrow
        else max(16, _BLOCK_ELEMENTS // max(num_gallery, 1))
    )
    for start in range(0, num_queries if num_gallery else 0, step):
        rows = slice(start, min(start + step, num_queries))
        columns = (
            slice(int(first_Q[rows.start]), int(last_Q[rows.stop - 1])) if narrow else slice(0, num_gallery)
        )
        same_RP = labels_Q[rows, None] == labels_G[None, columns]
        positive_RP = same_RP
        if within:
            positive_RP = same_RP.clone()
            positive_RP.diagonal(rows.start - columns.start).fill_(False)
        similarity_RG = queries_QD[rows] @ gallery_GD.T
        value += terms(
            Block(similarity_RG, columns, same_RP, positive_RP, num_positives_Q[rows], num_pairs, num_queries)
        )
        if query_gradient:
            torch.mm(similarity_RG, gallery_GD, out=query_gradient_QD[rows])
        if gallery_gradient:
            gallery_gradient_GD.addmm_(similarity_RG.T, queries_QD[rows])
    return (
        value,
        torch.empty_like(query_gradient_QD).index_copy_(0, query_order, query_gradient_QD)
        if query_gradient
        else query_gradient_QD,
        torch.empty_like(gallery_gradient_GD).index_copy_(0, gallery_order, gallery_gradient_GD)
        if gallery_gradient
        else gallery_gradient_GD,
    )


def pair_operator(
    name: str, parameters: str, terms: Callable[..., torch.Tensor]
) -> Callable[..., torch.Tensor]:
    """Make a pair loss of its terms: an operator that `torch.compile` takes as it is, without a graph break.

    Args:
        name: of the operator, within ``torch.ops.dml_losses``.
        parameters: the loss's own parameters as a PyTorch schema, ``"float scale, bool reweight"``.
        terms: called as ``terms(block, *parameters)``; see `Block`.

    Returns:
        ``loss(embeddings, labels, gallery, gallery_labels, *parameters, moves_query, moves_gallery)``, which
        normalises the rows, treats as constant the side that doesn't move, and returns the scalar loss.
    """

    def compute(
        queries: torch.Tensor,
        query_labels: torch.Tensor,
        gallery: torch.Tensor,
        gallery_labels: torch.Tensor,
        within: bool,
        query_gradient: bool,
        gallery_gradient: bool,
        *parameters: float | bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        with torch.autocast(queries.device.type, enabled=False):
            return value_and_gradients(
                lambda block: terms(block, *parameters),
                queries,
                query_labels,
                gallery,
                gallery_labels,
                within=within,
                query_gradient=query_gradient,
                gallery_gradient=gallery_gradient,
            )

    def fake(
        queries: torch.Tensor,
        query_labels: torch.Tensor,
        gallery: torch.Tensor,
        gallery_labels: torch.Tensor,
        within: bool,
        query_gradient: bool,
        gallery_gradient: bool,
        *parameters: float | bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return (
            queries.new_empty(()),
            torch.empty_like(queries if query_gradient else queries[:0]),
            torch.empty_like(gallery if gallery_gradient else gallery[:0]),
        )

    def keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.save_for_backward(output[1], output[2])
        ctx.num_inputs, ctx.moves = len(inputs), inputs[5:7]

    def backward(ctx: Any, upstream: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients = [
            gradient * upstream if moves else None for gradient, moves in zip(ctx.saved_tensors, ctx.moves)
        ]
        return (gradients[0], None, gradients[1], *[None] * (ctx.num_inputs - 3))

    operator = torch.library.custom_op(
        f"dml_losses::{name}",
        compute,
        mutates_args=(),
        schema="(Tensor queries, Tensor query_labels, Tensor gallery, Tensor gallery_labels, bool within, "
        f"bool query_gradient, bool gallery_gradient, {parameters}) -> (Tensor, Tensor, Tensor)",
    )
    operator.register_fake(fake)
    operator.register_autograd(backward, setup_context=keep_gradients)

    def loss(
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        gallery: torch.Tensor | None,
        gallery_labels: torch.Tensor | None,
        *parameters: float | bool,
        moves_query: bool,
        moves_gallery: bool,
    ) -> torch.Tensor:
        check_batch(embeddings, labels)
        check_gallery(embeddings, gallery, gallery_labels)
        queries = unit_rows(full_precision(embeddings))
        within = gallery is None
        rows = queries if gallery is None else unit_rows(full_precision(gallery).to(queries.dtype))
        gradients = torch.is_grad_enabled()
        value: torch.Tensor = operator(
            queries,
            labels.long(),
            rows,
            (labels if gallery_labels is None else gallery_labels).long(),
            within,
            gradients and moves_query and queries.requires_grad,
            gradients and moves_gallery and rows.requires_grad,
            *parameters,
        )[0]
        return value

    return loss

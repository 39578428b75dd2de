"""Make torch operators from losses of the similarity product, with gradients and support for
`torch.compile`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from dml_losses.arguments import check_batch, check_gallery
from dml_losses.exchange import BlocksOfRank
from dml_losses.functional.first_order import check_no_second_derivatives, check_no_transforms
from dml_losses.functional.pairs import (
    CPU_BLOCK_ROWS,
    Average,
    WeightedQueries,
    value_and_gradients,
)
from dml_losses.functional.sphere import at_least_float32, both_double, clamp_to

# The types of a loss's parameters in a PyTorch schema, and of its terms.
Parameter: TypeAlias = float | bool | str | list[float] | torch.Tensor
Terms: TypeAlias = Callable[..., torch.Tensor | Average | WeightedQueries]


def similarity_operator(
    name: str,
    parameters: str,
    terms: Terms,
    *,
    queries_ordered: bool = False,
    cpu_block_rows: int = CPU_BLOCK_ROWS,
    symmetric: bool = False,
    num_learned: int = 0,
) -> Callable[..., torch.Tensor]:
    """Make an operator from a loss's terms, which `torch.compile` can call without a graph break.

    Args:
        name: the operator's name in ``torch.ops.dml_losses``.
        parameters: the loss's parameters as a PyTorch schema, like
            ``"float scale, bool reweight"``.
        terms: called as ``terms(block, *parameters)``; see `Block`.
        queries_ordered, cpu_block_rows, symmetric: see `value_and_gradients`.
        num_learned: the number of learned numbers. If there are any, the parameters must begin with
            ``"Tensor learned, bool over_ranks"``, and terms are called without `over_ranks`: see
            `value_and_gradients`.

    Returns:
        ``operator(queries, query_labels, gallery, gallery_labels, within, query_gradient,
        gallery_gradient, *parameters)``, the scalar loss; see `value_and_gradients`.
    """

    def compute(
        queries: torch.Tensor,
        query_labels: torch.Tensor,
        gallery: torch.Tensor,
        gallery_labels: torch.Tensor,
        within: bool,
        query_gradient: bool,
        gallery_gradient: bool,
        *parameters: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        share = None
        if num_learned:
            learned, over_ranks, *others = parameters
            share = (
                BlocksOfRank(len(queries), queries.device) if over_ranks and len(gallery) else None
            )
            parameters = (learned.to(at_least_float32(queries.dtype)), *others)
        with torch.autocast(queries.device.type, enabled=False):
            value, query_move, gallery_move = value_and_gradients(
                lambda block: terms(block, *parameters),
                queries,
                query_labels,
                gallery,
                gallery_labels,
                within=within,
                query_gradient=query_gradient,
                gallery_gradient=gallery_gradient,
                queries_ordered=queries_ordered,
                cpu_block_rows=cpu_block_rows,
                symmetric=symmetric and within,
                share=share,
                num_learned=num_learned,
            )
        if not num_learned:
            return value, query_move, gallery_move, value.new_empty(0)
        return value[0].clone(), query_move, gallery_move, value[1:].to(learned.dtype, copy=True)

    def fake(*inputs: Any) -> tuple[torch.Tensor, ...]:
        queries, _, gallery, _, within, query_gradient, gallery_gradient, *parameters = inputs
        wide = queries.new_empty((), dtype=at_least_float32(queries.dtype))
        return (
            wide,
            wide.new_empty(queries.shape if query_gradient or within else queries[:0].shape),
            wide.new_empty(gallery.shape if gallery_gradient and not within else gallery[:0].shape),
            (parameters[0] if num_learned else wide).new_empty(num_learned),
        )

    def keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.save_for_backward(*output[1:])
        ctx.num_inputs, ctx.dtypes = len(inputs), [side.dtype for side in inputs[:3:2]]

    def backward(
        ctx: Any, upstream: torch.Tensor, *_: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        check_no_second_derivatives()
        queries_gradient, gallery_gradient, learned_gradient = (
            gradient * upstream if gradient.shape[0] else None for gradient in ctx.saved_tensors
        )
        query, gallery = (
            side if side is None else clamp_to(side, dtype)
            for side, dtype in zip((queries_gradient, gallery_gradient), ctx.dtypes)
        )
        gradients = (query, None, gallery, None, None, None, None, learned_gradient)
        return (*gradients, *[None] * (ctx.num_inputs - len(gradients)))

    operator = torch.library.custom_op(
        f"dml_losses::{name}",
        compute,
        mutates_args=(),
        schema=(
            "(Tensor queries, Tensor query_labels, Tensor gallery, Tensor gallery_labels, bool "
            f"within, bool query_gradient, bool gallery_gradient, {parameters}) -> (Tensor, "
            "Tensor, Tensor, Tensor)"
        ),
    )
    operator.register_fake(fake)
    operator.register_autograd(backward, setup_context=keep_gradients)

    def scalar(*inputs: Any) -> torch.Tensor:
        check_no_transforms(inputs[0], inputs[2], *inputs[7 : 8 if num_learned else 7])
        value: torch.Tensor = operator(*inputs)[0]
        return value

    return scalar


def pair_inputs(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    gallery: torch.Tensor | None,
    gallery_labels: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Check the inputs of a pair loss, and return queries and gallery, both in float64 if either
    is, with int64 labels.
    """
    check_batch(embeddings, labels)
    check_gallery(embeddings, gallery, gallery_labels)
    labels = labels.long()
    if gallery is None or gallery_labels is None:
        return embeddings, labels, embeddings, labels
    queries, rows = both_double(embeddings, gallery)
    return queries, labels, rows, gallery_labels.long()


def pair_operator(
    name: str, parameters: str, terms: Terms, *, symmetric: bool = False, num_learned: int = 0
) -> Callable[..., torch.Tensor]:
    """Make a pair loss from its terms (see `similarity_operator`).

    Returns:
        ``loss(embeddings, labels, gallery, gallery_labels, *parameters, moves_query,
        moves_gallery)``, which checks the arguments and returns the scalar loss. If a side doesn't
        move, it is constant and doesn't get a gradient.
    """
    operator = similarity_operator(
        name, parameters, terms, symmetric=symmetric, num_learned=num_learned
    )

    def loss(
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        gallery: torch.Tensor | None,
        gallery_labels: torch.Tensor | None,
        *parameters: Parameter,
        moves_query: bool = True,
        moves_gallery: bool = True,
    ) -> torch.Tensor:
        queries, labels, rows, row_labels = pair_inputs(embeddings, labels, gallery, gallery_labels)
        gradients = torch.is_grad_enabled()
        return operator(
            queries,
            labels,
            rows,
            row_labels,
            gallery is None,
            gradients and moves_query and queries.requires_grad,
            gradients and moves_gallery and rows.requires_grad,
            *parameters,
        )

    return loss

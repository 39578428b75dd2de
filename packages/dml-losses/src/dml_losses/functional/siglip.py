"""SigLIP: every pair is a binary decision, with a learned scale and bias.

Shapes: `B` batch, `G` gallery, `D` dim, `R` queries per block, `P` columns that can contain positives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import logsigmoid

from dml_losses.exchange import BlocksOfRank
from dml_losses.functional.first_order import check_no_second_derivatives, check_no_transforms
from dml_losses.functional.pair_operators import empty_results, pair_inputs
from dml_losses.functional.pairs import Block, value_and_gradients
from dml_losses.functional.sphere import full_precision


def siglip(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    gallery: torch.Tensor | None = None,
    gallery_labels: torch.Tensor | None = None,
    *,
    log_scale: torch.Tensor,
    bias: torch.Tensor,
    over_ranks: bool = False,
) -> torch.Tensor:
    """Compute the logistic loss of all pairs: same class or not.

    L = −1/B · Σ_i Σ_{j≠i} log σ(z_ij·(t·s_ij + b)),  t = exp(t'),  z_ij = 1 if y_i = y_j, else −1

    where s are cosines; t' and b are learned.

    Source: Zhai et al. 2023, Sigmoid Loss for Language Image Pre-Training. Departure: there is only one kind of row, so
    a batch is paired with itself (or with a gallery), and all rows of a class are positives for each other.

    Args:
        embeddings, labels, gallery, gallery_labels: see `dml_losses.functional`.
        log_scale: t', a floating scalar; it starts at log 10 in the paper.
        bias: b, a floating scalar; it starts at −10 in the paper, since most pairs are negative.
        over_ranks: if there is no gallery, compute 1/W of the pairs of a batch that all ranks have. Ranks exchange
            three numbers per block of queries, and the full gradient (B, D). The number of ranks can't change a bit of
            value or gradients, if all ranks have the same kind of device and number of threads.

    Returns:
        The loss, a scalar; zero, with a zero gradient, if there is no pair.
    """
    queries, labels, rows, row_labels = pair_inputs(embeddings, labels, gallery, gallery_labels)
    gradients = torch.is_grad_enabled()
    check_no_transforms(queries, rows, log_scale, bias)
    value: torch.Tensor = _operator(
        queries,
        labels,
        rows,
        row_labels,
        full_precision(log_scale).to(queries.dtype),
        full_precision(bias).to(queries.dtype),
        gallery is None,
        gradients and queries.requires_grad,
        gradients and rows.requires_grad,
        over_ranks and gallery is None,
    )[0]
    return value


@torch.library.custom_op(
    "dml_losses::siglip",
    mutates_args=(),
    schema="(Tensor queries, Tensor query_labels, Tensor gallery, Tensor gallery_labels, Tensor log_scale, "
    "Tensor bias, bool within, bool query_gradient, bool gallery_gradient, bool over_ranks) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)
def _operator(
    queries: torch.Tensor,
    query_labels: torch.Tensor,
    gallery: torch.Tensor,
    gallery_labels: torch.Tensor,
    log_scale: torch.Tensor,
    bias: torch.Tensor,
    within: bool,
    query_gradient: bool,
    gallery_gradient: bool,
    over_ranks: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the loss, the gradients of queries and gallery, and the gradient of (t', b), (2,).

    Blocks are summed in order, on any rank. For the arguments, all of the same dtype, see `value_and_gradients`.
    """
    share = BlocksOfRank(len(queries), queries.device) if over_ranks else None
    sums: list[torch.Tensor] = []

    def terms(block: Block) -> torch.Tensor:
        sums.append(_terms(block, log_scale, bias))
        return torch.zeros_like(log_scale)

    with torch.autocast(queries.device.type, enabled=False):
        _, query_move, gallery_move = value_and_gradients(
            terms,
            queries,
            query_labels,
            gallery,
            gallery_labels,
            within=within,
            query_gradient=query_gradient,
            gallery_gradient=gallery_gradient,
            symmetric=within,
            share=share,
        )
    blocks = torch.stack(sums) if sums else queries.new_zeros(0, 3)
    blocks = blocks if share is None else share.gather_blocks(blocks)
    total = blocks.sum(dim=0)
    return total[0].clone(), query_move, gallery_move, total[1:].clone()


def _terms(block: Block, log_scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute a block's share of the value, and of the derivatives with respect to t' and b, (3,)."""
    scale = log_scale.exp()
    scaled_RG = block.similarity.mul_(scale)
    logits_RG = scaled_RG + bias
    positive_RP = logits_RG[:, block.columns].masked_fill(~block.positive, torch.inf)
    logits_RG[:, block.columns].masked_fill_(block.same, -torch.inf)
    value = -logsigmoid(-logits_RG).sum() - logsigmoid(positive_RP).sum()
    weight_RG = logits_RG.sigmoid_()
    weight_RG[:, block.columns] -= positive_RP.neg_().sigmoid_()
    weight_RG.div_(block.num_queries)
    scale_slope = (weight_RG * scaled_RG).sum()
    torch.mul(weight_RG, scale, out=block.similarity)
    return torch.stack((value / block.num_queries, scale_slope, weight_RG.sum()))


@_operator.register_fake
def _(*inputs: Any) -> tuple[torch.Tensor, ...]:
    return *empty_results(inputs[0], inputs[2], *inputs[6:9]), inputs[0].new_empty(2)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, upstream: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    check_no_second_derivatives()
    query_move, gallery_move, numbers = ctx.saved_tensors
    log_scale, bias = (numbers * upstream).unbind()
    query_gradient, gallery_gradient = (
        gradient * upstream if gradient.shape[0] else None for gradient in (query_move, gallery_move)
    )
    return query_gradient, None, gallery_gradient, None, log_scale, bias, None, None, None, None


_operator.register_autograd(_backward, setup_context=_keep)

"""Compute the softmax cross entropy of cosines with class weights, with an optional margin at the true class.

NormSoftmax, Heated-Up Softmax, CosFace, ArcFace with one or more centres per class, AdaFace and Proxy-NCA use this
function with different parameters. The logits are computed in a (B × C) buffer, where they become the gradient in
place, block by block in cache. The class weights are never copied: their norms scale the buffer's columns instead.

If each rank has the weights of some classes, it only computes their logits. For each row of a block, ranks exchange
three numbers: the true class's logit (from the rank that has it), the highest logit, and the sum of exponentials.

Extra rows and classes can be constants (`Virtual`): they are compared like the others, but need one matrix product
instead of three, since they don't get a gradient.

Shapes: `B` batch, `P` constant rows, `N` = B + P, `C` class weights, `T` class weights including constants, `D` dim,
`R` rows per block, `K` weights (centres) per class.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ReduceOp
from torch.nn.functional import logsigmoid

from dml_core import rank_and_world_size
from dml_losses.exchange import all_reduce_, sum_gradient_over_ranks
from dml_losses.functional.classes import ClassWeights, Virtual, class_inputs
from dml_losses.functional.first_order import check_no_second_derivatives, check_no_transforms
from dml_losses.functional.margins import (
    apply_margin,
    apply_row_margins,
    keep_nearest_centers_,
    modulate_hard_,
    turn,
)
from dml_losses.functional.sphere import inverse_norms, through_norm_, unit_rows

_BLOCK_ELEMENTS = {"cpu": 2**21, "cuda": 2**26}
_FEWEST_ROWS = 64


def cosine_softmax(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: ClassWeights,
    scale: float,
    *,
    angular_margin: float = 0.0,
    cosine_margin: float = 0.0,
    positive_in_denominator: bool = True,
    row_margins: Callable[[torch.Tensor], torch.Tensor] | None = None,
    centers_per_class: int = 1,
    normalise: Callable[[torch.Tensor], torch.Tensor] = unit_rows,
    normalise_weights: bool = True,
    progress: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the mean cross entropy of softmax(s·cos θ), with a margin at the true class.

    L = −mean_b log( e^{s·φ(θ_y)} / (e^{s·φ(θ_y)} + Σ_{c≠y} e^{s·ν(cos θ_c)}) ),  φ(θ) = cos(θ + m₁) − m₂,
    cos θ_c = max_k x_bᵀ w_ck / ‖w_ck‖

    where ν is the identity, or with `progress` CurricularFace's modulation.

    Source: the common form of Making Classification Competitive, Eq. 5 (no margin), CosFace (m₂) and ArcFace, Eq. 3
    (m₁). If θ + m₁ exceeds π, cos(θ + m₁) would rise again and push the embedding away from its class; φ is then
    cos θ − m₁·sin m₁ − m₂, as in ArcFace's published code. With `row_margins`, θ + m₁ is limited to [0, π] instead, as
    in AdaFace's code. The maximum over a class's centres only gives a gradient to the nearest centre, the first of
    equals. For classes on multiple ranks: An et al. 2021, Partial FC, section 3.1; departure: the value is the same for
    any number of ranks, up to rounding.

    Args:
        embeddings, labels, class_weights: see `class_inputs`. `Virtual` rows and classes count in the mean and in all
            sums. If classes are divided over ranks (a rank can have none), embeddings and labels must be the global
            batch; the embeddings' gradient is then only the part from this rank's classes.
        scale: s > 0, the inverse temperature.
        angular_margin: m₁ in radians, in [0, π/2).
        cosine_margin: m₂ ≥ 0.
        positive_in_denominator: if false, only sum over the other classes (NCA), so that the loss can be negative.
        row_margins: maps rows (N, D) to m₁ in (−π/2, π/2) and m₂ per row, (N, 2), to use instead of the two numbers.
        centers_per_class: K ≥ 1, which divides C.
        normalise: maps embeddings to the features x, (B, D); `Virtual` rows become unit rows.
        normalise_weights: if false, the weights are compared without normalisation.
        progress: t, a scalar, to use CurricularFace's modulation; not for `Virtual` classes or multiple centres.

    Returns:
        The loss, a scalar in float32 (float64 if either side is float64); zero, with a zero gradient, for one class.
        All cosines of a zero row are 0.
    """
    rows, labels, weights = class_inputs(embeddings, labels, class_weights, centers_per_class)
    gradients = torch.is_grad_enabled()
    features, constant_rows = normalise(rows), rows[:0]
    constant_weights: list[torch.Tensor] = []
    check_no_transforms(features, weights)
    if isinstance(class_weights, Virtual):
        constant_rows, past_labels, constant_weights = class_weights.constants(rows)
        labels = torch.cat((labels, past_labels))
    margins = [] if row_margins is None else [row_margins(some) for some in (rows, constant_rows)]
    first, num_classes = (
        (0, 0)  # this rank has all classes
        if isinstance(class_weights, (torch.Tensor, Virtual))
        else (class_weights.first, class_weights.num_classes)
    )
    value: torch.Tensor = _operator(
        features,
        unit_rows(constant_rows.detach()),
        labels,
        weights,
        constant_weights,
        torch.cat(margins).detach().to(features.dtype) if margins else features.new_empty(0, 2),
        progress,
        scale,
        angular_margin,
        cosine_margin,
        positive_in_denominator,
        centers_per_class,
        normalise_weights,
        first,
        num_classes,
        gradients and features.requires_grad,
        gradients and weights.requires_grad,
    )[0]
    return sum_gradient_over_ranks(value) if num_classes else value


@torch.library.custom_op(
    "dml_losses::cosine_softmax",
    mutates_args=(),
    schema="(Tensor features, Tensor constant_features, Tensor labels, Tensor class_weights, "
    "Tensor[] constant_weights, Tensor row_margins, Tensor? progress, float scale, float angular_margin, "
    "float cosine_margin, bool positive_in_denominator, int centers_per_class, bool normalise_weights, int first, "
    "int num_classes, bool features_move, bool weights_move) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _operator(
    features: torch.Tensor,
    constant_features: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    constant_weights: list[torch.Tensor],
    row_margins: torch.Tensor,
    progress: torch.Tensor | None,
    scale: float,
    angular_margin: float,
    cosine_margin: float,
    positive_in_denominator: bool,
    centers_per_class: int,
    normalise_weights: bool,
    first: int,
    num_classes: int,
    features_move: bool,
    weights_move: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the loss; the features' gradient (B, D); the inverse norms (C,); and rows_N and columns_NC.

    rows_N ⊙ columns_NC is the gradient with respect to x_nᵀ w_c, for the weights' gradient. Gradients that aren't
    requested are empty. If this rank has only some classes, they begin at `first`, and `num_classes` counts all
    classes; else it is 0.
    """
    weights = (class_weights, *constant_weights)
    batch, num_rows, num_columns = len(features), len(labels), len(class_weights)
    inverse_norm_T = torch.cat(
        [inverse_norms(some) if normalise_weights else some.new_ones(len(some)) for some in weights]
    )
    all_columns = len(inverse_norm_T)
    bounds = itertools.accumulate((len(some) for some in weights), initial=0)
    pieces = [(slice(*pair), some) for pair, some in zip(itertools.pairwise(bounds), weights)]
    reduce, step = _keep_numbers, rows_per_block(features.device, all_columns)
    label_N1, own_N1 = labels[:, None], None
    if num_classes:
        reduce = all_reduce_
        # All ranks must use blocks of this size, since they exchange numbers per block.
        step = rows_per_block(features.device, num_classes * centers_per_class // rank_and_world_size()[1])
        own_N1 = (label_N1 >= first) & (label_N1 < first + num_columns // centers_per_class)
        label_N1 = (label_N1 - first).where(own_N1, 0)

    value = features.new_zeros(())
    features_gradient_BD = torch.empty_like(features if features_move else features[:0])
    row_N = features.new_empty(num_rows if weights_move else 0)
    # A rank without classes has columns of −∞, like a class that no row belongs to.
    width = max(num_columns, centers_per_class)
    columns_NC = features.new_empty(num_rows if weights_move else 0, width)
    in_place = weights_move and all_columns == num_columns
    scratch_RT = features.new_empty(0 if in_place else min(step, num_rows), max(all_columns, width))
    starts = [*range(0, batch, step), *range(batch, num_rows, step)]
    for start, stop in zip(starts, [*starts[1:], num_rows]):
        live = start < batch
        rows = slice(start, stop)
        features_RD = features[rows] if live else constant_features[start - batch : stop - batch]
        block_RT = columns_NC[rows] if in_place else scratch_RT[: stop - start]
        for columns, some in pieces:
            torch.mm(features_RD, some.T, out=block_RT[:, columns])
        logits_RT = block_RT[:, :all_columns]
        logits_RT.mul_(inverse_norm_T * scale)
        block_RT[:, all_columns:] = -torch.inf
        label_R1, own_R1 = label_N1[rows], None if own_N1 is None else own_N1[rows]
        if centers_per_class > 1:
            nearest_RC = keep_nearest_centers_(block_RT, centers_per_class)
            label_R1 = label_R1 * centers_per_class + nearest_RC.gather(1, label_R1)
        true_R1 = block_RT.gather(1, label_R1)
        true_R1 = reduce(true_R1 if own_R1 is None else true_R1.where(own_R1, 0))
        if len(row_margins):
            target_R1, slope_R1 = apply_row_margins(true_R1, scale, row_margins[rows])
        else:
            target_R1, slope_R1 = apply_margin(true_R1, scale, angular_margin, cosine_margin)
        modulation_RT = None
        if progress is not None:
            threshold_R1 = turn((true_R1 / scale).clamp(-1, 1), angular_margin)
            modulation_RT = modulate_hard_(logits_RT, threshold_R1, progress, scale)
        _put_(block_RT, label_R1, torch.full_like(true_R1, -torch.inf), own_R1)  # keep only the negatives

        highest_R1 = reduce(block_RT.amax(dim=1, keepdim=True), ReduceOp.MAX)
        highest_R1 = highest_R1.where(highest_R1 > -torch.inf, 0)  # a single class has no negatives
        block_RT.sub_(highest_R1).exp_()
        total_R1 = reduce(block_RT.sum(dim=1, keepdim=True))
        # Use 1 − p_y = σ(gap) and −log p_y = −log σ(−gap) to avoid the difference of nearly equal numbers.
        gap_R1 = highest_R1 + total_R1.log() - target_R1
        if positive_in_denominator:
            value -= logsigmoid(-gap_R1).sum() / num_rows
            push_R1 = gap_R1.sigmoid()
        else:
            push_R1 = torch.ones_like(gap_R1)
            value += gap_R1.where(total_R1 != 0, 0).sum() / num_rows  # NaN stays NaN
        if not weights_move and not (live and features_move):
            continue
        if modulation_RT is not None:
            logits_RT.mul_(modulation_RT)
        _put_(block_RT, label_R1, -slope_R1 * total_R1, own_R1)
        logits_RT.mul_(inverse_norm_T)
        push_R1 *= (scale / num_rows) / total_R1.where(total_R1 > 0, 1)
        if live and features_move:
            gradient_RD = features_gradient_BD[rows].zero_()
            for columns, some in pieces:
                gradient_RD.addmm_(block_RT[:, columns], some)
            gradient_RD.mul_(push_R1)
        if weights_move:
            row_N[rows] = push_R1.squeeze(1)
            if not in_place:
                columns_NC[rows] = block_RT[:, :width]
    return (
        value,
        features_gradient_BD,
        inverse_norm_T[:num_columns].clone(),
        row_N,
        columns_NC[:, :num_columns],
    )


def rows_per_block(device: torch.device, columns: int) -> int:
    """Choose the number of rows per block: on a CPU, few enough for the cache, but enough for a fast product."""
    return max(_FEWEST_ROWS, _BLOCK_ELEMENTS.get(device.type, 2**26) // max(columns, 1))


def _keep_numbers(numbers: torch.Tensor, operation: ReduceOp.RedOpType = ReduceOp.SUM) -> torch.Tensor:
    """Return the numbers, which is the reduction over a single process."""
    return numbers


def _put_(
    block_RT: torch.Tensor, column_R1: torch.Tensor, number_R1: torch.Tensor, own_R1: torch.Tensor | None
) -> None:
    """Write a number into a column of each row whose true class is on this rank."""
    if own_R1 is not None:
        number_R1 = number_R1.where(own_R1, block_RT.gather(1, column_R1))
    block_RT.scatter_(1, column_R1, number_R1)


@_operator.register_fake
def _(*inputs: Any) -> tuple[torch.Tensor, ...]:
    features, _, labels, class_weights, *_, features_move, weights_move = inputs
    num_rows, num_columns = labels.shape[0] if weights_move else 0, class_weights.shape[0]
    return (
        features.new_empty(()),
        torch.empty_like(features if features_move else features[:0]),
        features.new_empty(num_columns),
        features.new_empty(num_rows),
        features.new_empty(num_rows, num_columns),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # otherwise, unused outputs get gradients of zeros, up to (N, C)
    features, constant_features, _, class_weights, constant_weights, *_ = inputs
    ctx.save_for_backward(features, constant_features, class_weights, *output[1:])
    ctx.num_inputs, ctx.num_constants = len(inputs), len(constant_weights)
    ctx.normalise_weights, ctx.moves = inputs[12], inputs[-2:]


def _backward(
    ctx: Any, upstream: torch.Tensor, *_: torch.Tensor
) -> tuple[torch.Tensor | list[None] | None, ...]:
    features_BD, constant_PD, weights_CD, features_gradient_BD, inverse_norm_C, row_N, columns_NC = (
        ctx.saved_tensors
    )
    check_no_second_derivatives()
    features_move, weights_move = ctx.moves
    weights_gradient_CD = None
    if weights_move:
        with torch.autocast(features_BD.device.type, enabled=False):
            scaled_ND = torch.cat((features_BD, constant_PD)) * (row_N * upstream)[:, None]
            weights_gradient_CD = columns_NC.T @ scaled_ND
            if ctx.normalise_weights:
                through_norm_(weights_gradient_CD, weights_CD, inverse_norm_C, unit=False)
    return (
        features_gradient_BD * upstream if features_move else None,
        None,
        None,
        weights_gradient_CD,
        [None] * ctx.num_constants,
        *[None] * (ctx.num_inputs - 5),
    )


_operator.register_autograd(_backward, setup_context=_keep)

"""Compute the softmax cross entropy of cosines with class weights, with an optional margin at the
true class.

NormSoftmax, Heated-Up Softmax, CosFace, ArcFace with one or more centres per class, AdaFace,
CurricularFace and Proxy-NCA use this function with different parameters. It passes over blocks of
classes twice, so that no buffer grows with B × C. The first pass updates each row's highest logit,
and the sum of exponentials relative to this logit. The second pass, in backward, computes the
exponentials again, and both gradients. If all exponentials fit into a small buffer, the first pass
goes over blocks of rows instead, and keeps the buffer for backward. The class weights are never
copied: their norms scale the block's columns.

If each rank has the weights of some classes, it only passes over these. Ranks exchange three
numbers for each row: before the first pass, the true class's cosine, which one rank has; after it,
the highest logit and the sum.

Extra rows and classes can be constants (`Virtual`): they are compared like the others, but don't
get a gradient.

Shapes: `B` batch, `N` rows including constants, `C` class weights, `D` dim, `R` rows and `L` class
weights in a block, `K` weights (centres) per class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp
from torch.nn.functional import softplus

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
from dml_losses.functional.products import (
    ALL_PARTS,
    LARGEST_FACTOR,
    add_product_,
    left_factor,
    multiply,
    pays_in_parts,
    right_factor,
    split,
)
from dml_losses.functional.sphere import inverse_norms, through_norm_, unit_rows

# Maximum numbers of kept derivatives, and of elements in a block. A block should fit into a CPU's
# cache; on an accelerator, to start the kernels of small blocks takes longer than to run them.
_KEPT_ELEMENTS, _BLOCK_ELEMENTS = {"cpu": 2**23}, {"cpu": 2**20}
_KEPT_ON_ACCELERATOR, _BLOCK_ON_ACCELERATOR = 2**26, 2**25
_FEWEST_ROWS, _FEWEST_COLUMNS = 256, 128


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

    L = −mean_b log( e^{s·φ(θ_y)} / (e^{s·φ(θ_y)} + Σ_{c≠y} e^{s·ν(cos θ_c)}) ),
    φ(θ) = cos(θ + m₁) − m₂,
    cos θ_c = max_k x_bᵀ w_ck / ‖w_ck‖

    where ν is the identity, or with `progress` CurricularFace's modulation.

    Source: the common form of Making Classification Competitive, Eq. 5 (no margin), CosFace (m₂)
    and ArcFace, Eq. 3 (m₁). If θ + m₁ exceeds π, cos(θ + m₁) would rise again and push the
    embedding away from its class; φ is then cos θ − m₁·sin m₁ − m₂, as in ArcFace's published code.
    With `row_margins`, θ + m₁ is limited to [0, π] instead, as in AdaFace's code. The maximum over
    a class's centres only gives a gradient to the nearest centre, the first of equals. For classes
    on multiple ranks: An et al. 2021, Partial FC, section 3.1; departure: the value is the same for
    any number of ranks, up to rounding.

    Args:
        embeddings, labels, class_weights: see `class_inputs`. `Virtual` rows and classes count in
            the mean and in all sums. If classes are divided over ranks (a rank can have none),
            embeddings and labels must be the global batch; the embeddings' gradient is then only
            the part from this rank's classes.
        scale: s > 0, the inverse temperature.
        angular_margin: m₁ in radians, in [0, π/2).
        cosine_margin: m₂ ≥ 0.
        positive_in_denominator: if false, only sum over the other classes (NCA), so that the loss
            can be negative.
        row_margins: maps rows (N, D) to m₁ in (−π/2, π/2) and m₂ per row, (N, 2), to use instead of
            the two numbers.
        centers_per_class: K ≥ 1, which divides C.
        normalise: maps embeddings to the features x, (B, D); `Virtual` rows become unit rows.
        normalise_weights: if false, the weights are compared without normalisation.
        progress: t, a scalar, to use CurricularFace's modulation; not for `Virtual` classes or
            multiple centres.

    Returns:
        The loss, a scalar in float32 (float64 if either side is float64); zero, with a zero
        gradient, for one class. All cosines of a zero row are 0.
    """
    rows, labels, weights = class_inputs(embeddings, labels, class_weights, centers_per_class)
    check_no_transforms(rows, weights)
    rows_ND, constant_rows, parts = normalise(rows), rows[:0], [weights]
    if isinstance(class_weights, Virtual):
        constant_rows, past_labels, constant_weights = class_weights.constants(rows)
        labels, parts = torch.cat((labels, past_labels)), [weights, *constant_weights]
        rows_ND = torch.cat((rows_ND, unit_rows(constant_rows.detach())))
    first = None if isinstance(class_weights, (torch.Tensor, Virtual)) else class_weights.first
    sharded = first is not None
    whole = len(parts) == 1 and not sharded  # all classes are in `weights`
    most = (
        _KEPT_ELEMENTS.get(weights.device.type, _KEPT_ON_ACCELERATOR)
        if torch.is_grad_enabled()
        else 0
    )
    in_parts = (
        normalise is unit_rows
        and normalise_weights
        and scale <= LARGEST_FACTOR
        and pays_in_parts(rows_ND, weights.shape[0])
    )
    with torch.no_grad():
        column_NK = labels[:, None] - first if first else labels[:, None]
        if centers_per_class > 1:
            centers_K = torch.arange(centers_per_class, device=labels.device)
            column_NK = column_NK * centers_per_class + centers_K
        inverse = [
            inverse_norms(some) if normalise_weights else some.new_ones(len(some)) for some in parts
        ]
        if whole and centers_per_class == 1:
            # An accelerator's assertion fails here if a label is out of range.
            true_ND, inverse_N1 = weights.index_select(0, labels), inverse[0][column_NK]
            dot_N1 = true_ND.mul_(rows_ND).sum(1, keepdim=True)
            cosine_N1 = dot_N1.mul_(inverse_N1)
            nearest_N1 = labels[:, None]  # torch.compile can't pass `column_NK` twice
        else:
            cosine_N1, nearest_N1, inverse_N1 = _find_true(
                rows_ND, column_NK, parts, torch.cat(inverse), sharded
            )
        if sharded:
            all_reduce_(cosine_N1)
        if row_margins is None:
            target_N1, slope_N1 = apply_margin(
                cosine_N1 * scale, scale, angular_margin, cosine_margin
            )
        else:
            margins = torch.cat([row_margins(some) for some in (rows, constant_rows)]).to(
                rows_ND.dtype
            )
            target_N1, slope_N1 = apply_row_margins(cosine_N1 * scale, scale, margins)
        threshold_N1 = None if progress is None else turn(cosine_N1.clamp(-1, 1), angular_margin)
    pull_N1 = -slope_N1 if in_parts else inverse_N1 * -slope_N1
    gap_N1 = _Gap.apply(
        weights, rows_ND, column_NK, nearest_N1, pull_N1, inverse[0], threshold_N1, progress, scale,
        normalise_weights, in_parts, embeddings.dtype != rows.dtype, whole, rows.shape[0],
        parts[1:], inverse[1:], target_N1, sharded,
        0 < rows_ND.shape[0] * weights.shape[0] <= most,
    )  # fmt: skip
    # Use 1 − p_y = σ(gap) and −log p_y = log(1 + e^gap) to avoid the difference of nearly equal
    # numbers. From 40 on, log(1 + e^gap) is the gap in float64, too.
    losses_N1 = (
        softplus(gap_N1, threshold=40.0)
        if positive_in_denominator
        else gap_N1.where(gap_N1 != -torch.inf, 0)
    )
    value: torch.Tensor = losses_N1.mean()
    return sum_gradient_over_ranks(value) if sharded else value


def _find_true(
    rows_ND: torch.Tensor,
    column_NK: torch.Tensor,
    weights: list[torch.Tensor],
    inverse_T: torch.Tensor,
    sharded: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the true class's nearest weight: cosine, column and 1/norm (cosine and 1/norm are 0 on
    other ranks).
    """
    dot_NK, first = rows_ND.new_zeros(column_NK.shape), 0
    for some in weights:
        if some.shape[0]:  # a rank can have no class
            here_NK = (column_NK - first).clamp(0, some.shape[0] - 1)
            dots = [
                some.index_select(0, here_N).mul_(rows_ND).sum(1) for here_N in here_NK.unbind(1)
            ]
            dot_NK = torch.stack(dots, 1).where(here_NK + first == column_NK, dot_NK)
        first += some.shape[0]
    index_NK = column_NK
    if sharded:
        inverse_T = torch.cat((inverse_T, inverse_T.new_zeros(1)))
        index_NK = column_NK.where((column_NK >= 0) & (column_NK < first), first)
    # An accelerator's assertion fails here if a label is out of range.
    inverse_NK = inverse_T.index_select(0, index_NK.flatten()).view(index_NK.shape)
    cosine_N1, center_N1 = (dot_NK * inverse_NK).max(dim=1, keepdim=True)
    return cosine_N1, column_NK.gather(1, center_N1), inverse_NK.gather(1, center_N1)


class _Comparison(NamedTuple):
    """Rows, and weights to compare with them: the first inputs of both operators."""

    weights_CD: torch.Tensor
    rows_ND: torch.Tensor
    column_NK: (
        torch.Tensor
    )  # the true class's weights; outside of [0, C) if `weights_CD` lacks the class
    nearest_N1: torch.Tensor  # the nearest of these weights
    pull_N1: torch.Tensor  # −∂target/∂(x_nᵀ w_c) of this weight, without the scale
    inverse_norm_C: torch.Tensor
    threshold_N1: torch.Tensor | None  # cos(θ_y + m₁), if logits are modulated
    progress: torch.Tensor | None  # t
    scale: float
    normalise_weights: bool
    in_parts: bool  # rows and weights are then both normalised; see `pays_in_parts`
    rounded: bool  # the rows' gradient will be rounded to half precision
    whole: bool  # there are no other weights, so that `column_NK` is in [0, C)

    def factors(self, columns: slice) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return weights to multiply, (L, D), and the factors of their products, (L,): unit weights
        for tensor cores, which have to be copied anyway, otherwise the weights and 1/norm.
        """
        weights_LD, inverse_L = self.weights_CD[columns], self.inverse_norm_C[columns]
        return (weights_LD * inverse_L[:, None], None) if self.in_parts else (weights_LD, inverse_L)

    @property
    def row_parts(self) -> int:
        """Return into how many parts to split the factors of the rows' gradient."""
        return ALL_PARTS - self.rounded if self.in_parts else 0

    def pass_over(
        self, kept_NC: torch.Tensor | None = None
    ) -> Iterator[tuple[slice, slice, torch.Tensor, torch.Tensor, torch.Tensor | None]]:
        """Compute logits in blocks of columns, which share memory, or in blocks of rows, which are
        parts of `kept_NC`.

        Yields:
            A block's rows and columns; the negatives' logits (R, L), −∞ at the true class; the
            block's weights (see `factors`); and the logits' derivatives with respect to the dot
            products, without the scale, (L,) or (R, L), or None for 1.
        """
        (num_rows, centers), num_columns = self.column_NK.shape, len(self.weights_CD)
        most = _BLOCK_ELEMENTS.get(self.rows_ND.device.type, _BLOCK_ON_ACCELERATOR)
        step_R, step_L = max(_FEWEST_ROWS, most // max(num_columns, 1)), max(num_columns, 1)
        if kept_NC is None:
            step_R, step_L = (
                num_rows,
                max(_FEWEST_COLUMNS, most // num_rows, centers) // centers * centers,
            )
            scratch_NL = self.rows_ND.new_empty(num_rows, min(step_L, num_columns))
        rows_ND = self.rows_ND * self.scale if self.in_parts else self.rows_ND
        left_ND = left_factor(rows_ND, self.in_parts)
        for start_R, start_L in product(range(0, num_rows, step_R), range(0, num_columns, step_L)):
            rows, columns = slice(start_R, start_R + step_R), slice(start_L, start_L + step_L)
            weights_LD, slopes = self.factors(columns)
            logits_RL = scratch_NL[:, : len(weights_LD)] if kept_NC is None else kept_NC[rows]
            multiply(left_ND[rows], right_factor(weights_LD, self.in_parts), out=logits_RL)
            if slopes is not None:
                logits_RL.mul_(slopes * self.scale)
            if centers > 1:
                keep_nearest_centers_(logits_RL, centers)
            if self.threshold_N1 is not None and self.progress is not None:
                threshold_R1 = self.threshold_N1[rows]
                modulated = modulate_hard_(logits_RL, threshold_R1, self.progress, self.scale)
                slopes = modulated if slopes is None else slopes * modulated
            self.put_(logits_RL, self.column_NK[rows], start_L, -torch.inf)
            yield rows, columns, logits_RL, weights_LD, slopes

    def put_(
        self,
        block_RL: torch.Tensor,
        column_RK: torch.Tensor,
        start: int,
        number: torch.Tensor | float,
    ) -> None:
        """Write a number into columns of each row, unless they are outside of the block, whose
        first column is `start`.
        """
        if self.whole and block_RL.shape[1] == len(self.weights_CD):
            block_RL.scatter_(1, column_RK, number)
            return
        column_RK = column_RK - start
        here_RK = column_RK.clamp(0, block_RL.shape[1] - 1)
        block_RL.scatter_(
            1, here_RK, torch.where(here_RK == column_RK, number, block_RL.gather(1, here_RK))
        )


_COMPARISON = (
    "Tensor class_weights, Tensor rows, Tensor column_NK, Tensor nearest_N1, Tensor pull_N1, "
    "Tensor inverse_norm_C, Tensor? threshold_N1, Tensor? progress, float scale, bool "
    "normalise_weights, bool in_parts, bool rounded, bool whole"
)


def _compute(
    *inputs: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute log Σ_{c≠y} e^{z_c} − target (N, 1), and the next four inputs of `_differentiate`.

    Inputs, after `_Comparison`: the number of rows that aren't constant; constant weights and their
    inverse norms; the true class's logit with margin (N, 1); whether other ranks have classes;
    whether to keep all derivatives.
    """
    *shared, batch, constant_weights, constant_inverse_norms, target_N1, sharded, keeps = inputs
    own = _Comparison(*shared)
    comparisons = [own]
    for some, inverse in zip(constant_weights, constant_inverse_norms):
        column_NK = comparisons[-1].column_NK - len(comparisons[-1].weights_CD)
        comparisons.append(
            own._replace(weights_CD=some, column_NK=column_NK, inverse_norm_C=inverse)
        )
    kept_NC = own.rows_ND.new_empty(len(own.rows_ND) if keeps else 0, len(own.weights_CD))
    pushed_BD = torch.zeros_like(own.rows_ND[: batch if constant_weights else 0])
    # Without negatives, −∞ − highest must not be NaN.
    highest_N1 = torch.full_like(target_N1, torch.finfo(target_N1.dtype).min)
    total_N1 = torch.zeros_like(target_N1)
    # Pass over the class weights last, so that the exponentials to keep are relative to the highest
    # of all logits.
    for comparison in reversed(comparisons):
        before_N1 = highest_N1.clone() if constant_weights else highest_N1
        kept = kept_NC if keeps and comparison is own else None
        for rows, _, block_RL, weights_LD, slopes in comparison.pass_over(kept):
            highest_R1 = highest_N1[rows].maximum(block_RL.amax(1, keepdim=True))
            decay_R1 = (highest_N1[rows] - highest_R1).exp_()
            block_RL.sub_(highest_R1).exp_()
            total_N1[rows].mul_(decay_R1).add_(block_RL.sum(1, keepdim=True))
            highest_N1[rows] = highest_R1
            if slopes is not None and (comparison is not own or keeps):
                block_RL.mul_(slopes)
            if comparison is not own:
                pushed_BD.mul_(decay_R1[:batch])
                add_product_(
                    pushed_BD,
                    split(block_RL[:batch], comparison.row_parts),
                    split(weights_LD, comparison.row_parts),
                )
    if constant_weights:
        pushed_BD.mul_((before_N1 - highest_N1).exp_()[:batch])
    if sharded:
        before_N1, highest_N1 = highest_N1, all_reduce_(highest_N1.clone(), ReduceOp.MAX)
        decay_N1 = (before_N1 - highest_N1).exp_()
        total_N1 = all_reduce_(total_N1 * decay_N1)
        kept_NC.mul_(decay_N1[: len(kept_NC)])
    if keeps:
        own.put_(kept_NC, own.nearest_N1, 0, own.pull_N1 * total_N1)
    return highest_N1 + total_N1.log() - target_N1, highest_N1, total_N1, pushed_BD, kept_NC


def _differentiate(*inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the gradients of the class weights and of the rows, each empty if it isn't needed.

    Inputs, after `_Comparison`: the number of rows that aren't constant; the highest logit and the
    sum of exponentials per row; the part of the rows' gradient that constant weights add, if there
    are any; the derivatives with respect to the dot products, if they were kept; the upstream
    gradient (N, 1); which gradients are needed. This part and the derivatives still need a factor
    per row.
    """
    (
        *shared,
        batch,
        highest_N1,
        total_N1,
        pushed_BD,
        kept_NC,
        upstream_N1,
        weights_move,
        rows_move,
    ) = inputs
    own = _Comparison(*shared)
    push_N1 = upstream_N1 * own.scale / total_N1.clamp_min(1)  # without negatives, the total is 0
    weights_gradient_CD = torch.empty_like(own.weights_CD if weights_move else own.weights_CD[:0])
    rows_gradient_ND = torch.zeros_like(own.rows_ND if rows_move else own.rows_ND[:0])
    if rows_move:
        rows_gradient_ND[: pushed_BD.shape[0]] = pushed_BD

    def derive() -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        for _, columns, block_NL, weights_LD, slopes in own.pass_over():
            block_NL.sub_(highest_N1).exp_()
            if slopes is not None:
                block_NL.mul_(slopes)
            own.put_(block_NL, own.nearest_N1, columns.start, own.pull_N1 * total_N1)
            yield columns, block_NL, weights_LD

    def read() -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Divide the kept derivatives, so that their parts need little memory."""
        most = _BLOCK_ON_ACCELERATOR // len(own.rows_ND) if own.in_parts else kept_NC.shape[1]
        step = max(_FEWEST_COLUMNS, most)
        for start in range(0, kept_NC.shape[1], step):
            columns = slice(start, start + step)
            yield columns, kept_NC[:, columns], own.factors(columns)[0]

    weight_parts = ALL_PARTS if own.in_parts else 0
    pushing = split(own.rows_ND * push_N1, weight_parts)
    for columns, block_NL, weights_LD in read() if kept_NC.shape[0] else derive():
        parts = split(block_NL, weight_parts if weights_move else own.row_parts)
        if weights_move:
            gradient_LD, inverse_L = weights_gradient_CD[columns], own.inverse_norm_C[columns]
            add_product_(gradient_LD, tuple(part.T for part in parts), pushing, beta=0)
            if own.normalise_weights:
                through_norm_(gradient_LD, weights_LD, inverse_L, unit=own.in_parts)
        if rows_move:
            add_product_(
                rows_gradient_ND[:batch],
                tuple(part[:batch] for part in parts),
                split(weights_LD, own.row_parts),
            )
    return weights_gradient_CD, rows_gradient_ND.mul_(push_N1[: rows_gradient_ND.shape[0]])


_NUM_TENSORS = 8  # fields of `_Comparison` that are tensors; the others are numbers


class _Gap(torch.autograd.Function):
    """Compute log Σ_{c≠y} e^{z_c} − target by `_compute`, and the gradients by `_differentiate`."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        gap_N1, *outputs = (_compute_opaque if torch.compiler.is_compiling() else _compute)(*inputs)
        ctx.save_for_backward(*inputs[:_NUM_TENSORS], *outputs)
        ctx.numbers = inputs[_NUM_TENSORS : len(_Comparison._fields) + 1]  # and `batch`
        return gap_N1

    @staticmethod
    def backward(ctx: Any, upstream_N1: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        compiling = torch.compiler.is_compiling()
        if not compiling:
            check_no_second_derivatives()
        differentiate = _differentiate_opaque if compiling else _differentiate
        inputs, outputs = ctx.saved_tensors[:_NUM_TENSORS], ctx.saved_tensors[_NUM_TENSORS:]
        gradients = differentiate(
            *inputs, *ctx.numbers, *outputs, upstream_N1, *ctx.needs_input_grad[:2]
        )
        return *gradients, *[None] * 17


# Operators, so that torch.compile doesn't unroll the passes. Eager calls don't use them, since each
# takes 0.1 ms.
_compute_opaque = torch.library.custom_op(
    "dml_losses::cosine_softmax",
    _compute,
    mutates_args=(),
    schema=(
        f"({_COMPARISON}, SymInt batch, Tensor[] constant_weights, Tensor[] "
        "constant_inverse_norms, Tensor target_N1, bool sharded, bool keeps) -> (Tensor, Tensor, "
        "Tensor, Tensor, Tensor)"
    ),
)
_differentiate_opaque = torch.library.custom_op(
    "dml_losses::cosine_softmax_gradients",
    _differentiate,
    mutates_args=(),
    schema=(
        f"({_COMPARISON}, SymInt batch, Tensor highest_N1, Tensor total_N1, Tensor pushed_BD, "
        "Tensor kept_NC, Tensor upstream_N1, bool weights_move, bool rows_move) -> (Tensor, "
        "Tensor)"
    ),
)


@_compute_opaque.register_fake
def _(*inputs: Any) -> tuple[torch.Tensor, ...]:
    weights, rows, *_, batch, constant_weights, _, _, _, keeps = inputs
    count = rows.shape[0]  # `len` would make it a constant
    pushed, kept = (
        rows[: batch if constant_weights else 0],
        (count if keeps else 0, weights.shape[0]),
    )
    return (
        *(rows.new_empty(count, 1) for _ in range(3)),
        torch.empty_like(pushed),
        rows.new_empty(kept),
    )


@_differentiate_opaque.register_fake
def _(*inputs: Any) -> tuple[torch.Tensor, ...]:
    return tuple(
        torch.empty_like(side if move else side[:0]) for side, move in zip(inputs[:2], inputs[-2:])
    )

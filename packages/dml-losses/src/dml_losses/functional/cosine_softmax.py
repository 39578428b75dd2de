"""Softmax cross entropy of cosines with class weights, with an optional margin at the true class.

NormSoftmax, Heated-Up Softmax, CosFace, ArcFace with one or several centres for each class, AdaFace and Proxy-NCA are
this one function with different parameters. It holds one (B × C) buffer, in which the logits become the gradient in
place, block by block in cache. The class weights are never copied; their norms scale the buffer's columns instead.

Further rows and classes may be constants (`Virtual`): they are compared like the others, but cost one product instead
of three, since they get no gradient.

Shapes: `B` batch, `P` constant rows, `N` = B + P, `C` class weights, `T` class weights with the constant ones, `D` dim,
`R` rows of a block, `K` weights (centres) of a class.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import logsigmoid

from dml_losses.functional.first_order import refuse_second_derivatives, refuse_transforms
from dml_losses.functional.margins import apply_margin, apply_row_margins, keep_nearest_centers_
from dml_losses.functional.sphere import full_precision, inverse_norms, through_norm_, unit_rows

_BLOCK_ELEMENTS = {"cpu": 2**21, "cuda": 2**26}
_FEWEST_ROWS = 64


@dataclass(frozen=True, slots=True)
class Virtual:
    """Further embeddings and classes, compared like the batch's, but constant.

    Args:
        embeddings: (P, D), any floating dtype.
        labels: (P,), integer in [C, T), where C is the number of the loss's own classes.
        class_weights: the further classes, each (C', D) of any floating dtype, in the order of their labels.
    """

    embeddings: torch.Tensor
    labels: torch.Tensor
    class_weights: tuple[torch.Tensor, ...]

    def in_precision(self, dtype: torch.dtype, device: torch.device) -> Virtual:
        """Convert all to one dtype and device, without gradient."""
        return Virtual(
            full_precision(self.embeddings.detach()).to(device, dtype),
            self.labels.to(device),
            tuple(full_precision(weights.detach()).to(device, dtype) for weights in self.class_weights),
        )


def cosine_softmax(
    features: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    scale: float,
    *,
    angular_margin: float = 0.0,
    cosine_margin: float = 0.0,
    positive_in_denominator: bool = True,
    row_margins: torch.Tensor | None = None,
    centers_per_class: int = 1,
    virtual: Virtual | None = None,
) -> torch.Tensor:
    """Compute the mean cross entropy of softmax(s·cos θ), with a margin at the true class.

    L = −mean_b log( e^{s·φ(θ_y)} / (e^{s·φ(θ_y)} + Σ_{c≠y} e^{s·cos θ_c}) ),  φ(θ) = cos(θ + m₁) − m₂,
    cos θ_c = max_k x_bᵀ w_ck / ‖w_ck‖

    Source: the common form of Making Classification Competitive, Eq. 5 (no margin), CosFace (m₂) and
    ArcFace, Eq. 3 (m₁). Where θ + m₁ exceeds π, cos(θ + m₁) would rise again and push the embedding away from its
    class; there φ is cos θ − m₁·sin m₁ − m₂, as in ArcFace's published code. With `row_margins`, θ + m₁ is limited to
    [0, π] instead, as in AdaFace's. The gradient of the maximum over a class's centres reaches the nearest one, the
    first of equals.

    Args:
        features: (B, D) float32 or float64, normalised as the loss requires.
        labels: (B,), integer in [0, C).
        class_weights: (C, D), of the features' dtype, not normalised; the centres of a class are consecutive. All
            cosines of a zero row are 0.
        scale: s > 0, the inverse temperature.
        angular_margin: m₁ in radians, in [0, π/2).
        cosine_margin: m₂ ≥ 0.
        positive_in_denominator: if false, the denominator is the sum over the other classes alone (NCA), and the
            loss can be negative.
        row_margins: (N, 2), m₁ in (−π/2, π/2) and m₂ of each row, instead of the two numbers; constant rows follow
            the batch's.
        centers_per_class: K ≥ 1, which divides C.
        virtual: constant rows, which are L2-normalised here, and classes; they count in the mean and in every sum.

    Returns:
        The loss, a scalar of the features' dtype; zero, with a zero gradient, if there is one class.
    """
    gradients = torch.is_grad_enabled()
    refuse_transforms(features, class_weights)
    constant_features, constant_weights = features.new_empty(0, features.shape[1]), []
    labels = labels.long()
    if virtual is not None:
        virtual = virtual.in_precision(features.dtype, features.device)
        constant_features, constant_weights = unit_rows(virtual.embeddings), list(virtual.class_weights)
        labels = torch.cat((labels, virtual.labels))
    value: torch.Tensor = _operator(
        features,
        constant_features,
        labels,
        class_weights,
        constant_weights,
        scale,
        angular_margin,
        cosine_margin,
        positive_in_denominator,
        features.new_empty(0, 2) if row_margins is None else row_margins.detach(),
        centers_per_class,
        gradients and features.requires_grad,
        gradients and class_weights.requires_grad,
    )[0]
    return value


@torch.library.custom_op(
    "dml_losses::cosine_softmax",
    mutates_args=(),
    schema="(Tensor features, Tensor constant_features, Tensor labels, Tensor class_weights, "
    "Tensor[] constant_weights, float scale, float angular_margin, float cosine_margin, "
    "bool positive_in_denominator, Tensor row_margins, int centers_per_class, bool features_move, bool weights_move) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _operator(
    features: torch.Tensor,
    constant_features: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    constant_weights: list[torch.Tensor],
    scale: float,
    angular_margin: float,
    cosine_margin: float,
    positive_in_denominator: bool,
    row_margins: torch.Tensor,
    centers_per_class: int,
    features_move: bool,
    weights_move: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the loss; the features' gradient (B, D); the inverse norms (C,); and, for the weights' gradient, that
    with respect to x_nᵀ w_c as rows_N ⊙ columns_NC. Gradients that weren't asked for are empty."""
    weights = (class_weights, *constant_weights)
    batch, num_rows, num_classes = len(features), len(labels), len(class_weights)
    inverse_norm_T = torch.cat([inverse_norms(some) for some in weights])
    total_classes = len(inverse_norm_T)
    bounds = itertools.accumulate((len(some) for some in weights), initial=0)
    pieces = [(slice(*pair), some) for pair, some in zip(itertools.pairwise(bounds), weights)]

    value = features.new_zeros(())
    features_gradient_BD = torch.empty_like(features if features_move else features[:0])
    row_N = features.new_empty(num_rows if weights_move else 0)
    columns_NC = features.new_empty(num_rows if weights_move else 0, num_classes)
    step = rows_per_block(features.device, total_classes)
    in_place = weights_move and total_classes == num_classes
    scratch_RT = features.new_empty(0 if in_place else min(step, num_rows), total_classes)
    starts = [*range(0, batch, step), *range(batch, num_rows, step)]
    for start, stop in zip(starts, [*starts[1:], num_rows]):
        live = start < batch
        rows = slice(start, stop)
        features_RD = features[rows] if live else constant_features[start - batch : stop - batch]
        block_RT = columns_NC[rows] if in_place else scratch_RT[: stop - start]
        for columns, some in pieces:
            torch.mm(features_RD, some.T, out=block_RT[:, columns])
        block_RT.mul_(inverse_norm_T * scale)
        label_R1 = labels[rows, None]
        if centers_per_class > 1:
            nearest_RC = keep_nearest_centers_(block_RT, centers_per_class)
            label_R1 = label_R1 * centers_per_class + nearest_RC.gather(1, label_R1)
        target_R1 = block_RT.gather(1, label_R1)
        if len(row_margins):
            target_R1, slope_R1 = apply_row_margins(target_R1, scale, row_margins[rows])
        else:
            target_R1, slope_R1 = apply_margin(target_R1, scale, angular_margin, cosine_margin)
        block_RT.scatter_(1, label_R1, -torch.inf)  # from here on the negatives alone

        highest_R1 = block_RT.amax(dim=1, keepdim=True)
        highest_R1 = highest_R1.where(highest_R1 > -torch.inf, 0)  # one class: no negatives
        block_RT.sub_(highest_R1).exp_()
        total_R1 = block_RT.sum(dim=1, keepdim=True)
        # 1 − p_y = σ(gap) and −log p_y = −log σ(−gap): no difference of nearly equal numbers.
        gap_R1 = highest_R1 + total_R1.log() - target_R1
        if positive_in_denominator:
            value -= logsigmoid(-gap_R1).sum() / num_rows
            push_R1 = gap_R1.sigmoid()
        else:
            push_R1 = torch.ones_like(gap_R1)
            value += gap_R1.where(total_R1 != 0, 0).sum() / num_rows  # NaN stays NaN
        if not weights_move and not (live and features_move):
            continue
        block_RT.scatter_(1, label_R1, -slope_R1 * total_R1)
        block_RT.mul_(inverse_norm_T)
        push_R1 *= (scale / num_rows) / total_R1.where(total_R1 > 0, 1)
        if live and features_move:
            gradient_RD = features_gradient_BD[rows].zero_()
            for columns, some in pieces:
                gradient_RD.addmm_(block_RT[:, columns], some)
            gradient_RD.mul_(push_R1)
        if weights_move:
            row_N[rows] = push_R1.squeeze(1)
            if not in_place:
                columns_NC[rows] = block_RT[:, :num_classes]
    return value, features_gradient_BD, inverse_norm_T[:num_classes].clone(), row_N, columns_NC


def rows_per_block(device: torch.device, columns: int) -> int:
    """Choose the rows of a block of logits: on a CPU, few enough for the cache, but enough for a fast product."""
    return max(_FEWEST_ROWS, _BLOCK_ELEMENTS.get(device.type, 2**26) // max(columns, 1))


@_operator.register_fake
def _(
    features: torch.Tensor,
    constant_features: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    constant_weights: list[torch.Tensor],
    scale: float,
    angular_margin: float,
    cosine_margin: float,
    positive_in_denominator: bool,
    row_margins: torch.Tensor,
    centers_per_class: int,
    features_move: bool,
    weights_move: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    num_rows, num_classes = labels.shape[0] if weights_move else 0, class_weights.shape[0]
    return (
        features.new_empty(()),
        torch.empty_like(features if features_move else features[:0]),
        features.new_empty(num_classes),
        features.new_empty(num_rows),
        features.new_empty(num_rows, num_classes),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # zeros for outputs without gradient would be another (N × C)
    features, constant_features, _, class_weights, *_ = inputs
    ctx.save_for_backward(features, constant_features, class_weights, *output[1:])
    ctx.num_constants, ctx.moves = len(inputs[4]), inputs[-2:]


def _backward(
    ctx: Any, upstream: torch.Tensor, *_: torch.Tensor
) -> tuple[torch.Tensor | list[None] | None, ...]:
    features_BD, constant_PD, weights_CD, features_gradient_BD, inverse_norm_C, row_N, columns_NC = (
        ctx.saved_tensors
    )
    refuse_second_derivatives()
    features_move, weights_move = ctx.moves
    weights_gradient_CD = None
    if weights_move:
        with torch.autocast(features_BD.device.type, enabled=False):
            scaled_ND = torch.cat((features_BD, constant_PD)) * (row_N * upstream)[:, None]
            weights_gradient_CD = through_norm_(
                columns_NC.T @ scaled_ND, weights_CD, inverse_norm_C, unit=False
            )
    return (
        features_gradient_BD * upstream if features_move else None,
        None,
        None,
        weights_gradient_CD,
        [None] * ctx.num_constants,
        *[None] * 8,
    )


_operator.register_autograd(_backward, setup_context=_keep)

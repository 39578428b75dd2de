"""Softmax cross entropy of cosines with class weights, with an optional margin at the true class.

The losses of NormSoftmax, Heated-Up Softmax, CosFace and ArcFace are this one function with other parameters.
One (B × C) buffer is held: the logits become the gradient in place, block by block in cache. The class weights
are never copied; their norms scale the buffer's columns instead.

Shapes: `B` batch, `C` classes, `D` dim, `R` rows of a block.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.functional import logsigmoid

from dml_losses.functional.sphere import inverse_norms, through_norm_

_BLOCK_ELEMENTS = {"cpu": 2**20, "cuda": 2**26}  # of logits: on a CPU, what stays in cache between the passes


def cosine_softmax(
    features: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    scale: float,
    *,
    angular_margin: float = 0.0,
    cosine_margin: float = 0.0,
    positive_in_denominator: bool = True,
) -> torch.Tensor:
    """Mean cross entropy of softmax(s·cos θ), its true class's logit lowered by a margin.

    L = −mean_b log( e^{s·φ(θ_y)} / (e^{s·φ(θ_y)} + Σ_{c≠y} e^{s·cos θ_c}) ),  φ(θ) = cos(θ + m₁) − m₂,
    cos θ_c = x_bᵀ w_c / ‖w_c‖

    Source: the common form of Making Classification Competitive, Eq. 5 (no margin), CosFace, Eq. 4 (m₂) and
    ArcFace, Eq. 3 (m₁). Where θ + m₁ passes π, cos(θ + m₁) would rise again and push the embedding away from its
    class; there φ is cos θ − m₁·sin m₁ − m₂, as in ArcFace's published code.

    Args:
        features: (B, D) float32 or float64, normalised as the caller's loss normalises them.
        labels: (B,), integer in [0, C).
        class_weights: (C, D), of the features' dtype, not normalised. A zero row is at cosine 0 from everything.
        scale: s > 0, the inverse temperature.
        angular_margin: m₁ in radians, in [0, π/2).
        cosine_margin: m₂ ≥ 0.
        positive_in_denominator: without, the denominator is the sum over the other classes alone (NCA), and the
            loss can be negative.

    Returns:
        The loss, a scalar of the features' dtype; zero, with a zero gradient, if there is one class.
    """
    needs_gradient = torch.is_grad_enabled() and (features.requires_grad or class_weights.requires_grad)
    value: torch.Tensor = _operator(
        features,
        labels.long(),
        class_weights,
        scale,
        angular_margin,
        cosine_margin,
        positive_in_denominator,
        needs_gradient,
    )[0]
    return value


@torch.library.custom_op(
    "dml_losses::cosine_softmax",
    mutates_args=(),
    schema="(Tensor features, Tensor labels, Tensor class_weights, float scale, float angular_margin, "
    "float cosine_margin, bool positive_in_denominator, bool needs_gradient) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _operator(
    features: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    scale: float,
    angular_margin: float,
    cosine_margin: float,
    positive_in_denominator: bool,
    needs_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The loss; the inverse norms (C,); and the gradient with respect to x_bᵀ w_c as rows_B ⊙ columns_BC."""
    batch, num_classes = features.shape[0], class_weights.shape[0]
    inverse_norm_C = inverse_norms(class_weights)
    value = features.new_zeros(())
    row_B = features.new_empty(batch if needs_gradient else 0)
    step = max(16, _BLOCK_ELEMENTS.get(features.device.type, 2**26) // num_classes)
    buffer_BC = features.new_empty((batch if needs_gradient else min(step, batch), num_classes))
    for start in range(0, batch, step):
        rows = slice(start, min(start + step, batch))
        block_RC = buffer_BC[rows] if needs_gradient else buffer_BC[: rows.stop - rows.start]
        torch.mm(features[rows], class_weights.T, out=block_RC)
        block_RC.mul_(inverse_norm_C * scale)
        label_R1 = labels[rows, None]
        target_R1, slope_R1 = _with_margin(block_RC.gather(1, label_R1), scale, angular_margin, cosine_margin)
        block_RC.scatter_(1, label_R1, -torch.inf)  # from here on the negatives alone

        highest_R1 = block_RC.amax(dim=1, keepdim=True)
        highest_R1 = highest_R1.where(highest_R1 > -torch.inf, 0)  # one class: no negatives
        block_RC.sub_(highest_R1).exp_()
        total_R1 = block_RC.sum(dim=1, keepdim=True)
        # 1 − p_y = σ(gap) and −log p_y = −log σ(−gap): no difference of nearly equal numbers.
        gap_R1 = highest_R1 + total_R1.log() - target_R1
        if positive_in_denominator:
            value -= logsigmoid(-gap_R1).sum() / batch
            push_R1 = gap_R1.sigmoid()
        else:
            push_R1 = (total_R1 > 0).to(gap_R1.dtype)
            value += gap_R1.where(total_R1 > 0, 0).sum() / batch
        if needs_gradient:
            block_RC.scatter_(1, label_R1, -slope_R1 * total_R1)
            block_RC.mul_(inverse_norm_C)
            row_B[rows] = (push_R1 * (scale / batch) / total_R1.where(total_R1 > 0, 1)).squeeze(1)
    return value, inverse_norm_C, row_B, buffer_BC if needs_gradient else features.new_empty(0)


def _with_margin(
    target_R1: torch.Tensor, scale: float, angular_margin: float, cosine_margin: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The true class's logit s·φ(θ), and dφ/d(cos θ)."""
    slope_R1 = torch.ones_like(target_R1)
    if angular_margin:
        cosine_R1 = (target_R1 / scale).clamp(-1, 1)
        sine_R1 = (1 - cosine_R1.square()).sqrt()
        cos_m, sin_m = math.cos(angular_margin), math.sin(angular_margin)
        inside_R1 = cosine_R1 > -cos_m  # θ + m₁ < π
        target_R1 = scale * torch.where(
            inside_R1, cosine_R1 * cos_m - sine_R1 * sin_m, cosine_R1 - angular_margin * sin_m
        )
        # At θ = 0 the slope's limit is infinite; there it is that of the nearest angle the dtype can tell from 0.
        smallest = torch.finfo(target_R1.dtype).eps ** 0.5
        slope_R1 = (cos_m + sin_m * cosine_R1 / sine_R1.clamp_min(smallest)).where(inside_R1, 1)
    return target_R1 - scale * cosine_margin, slope_R1


@_operator.register_fake
def _(
    features: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    scale: float,
    angular_margin: float,
    cosine_margin: float,
    positive_in_denominator: bool,
    needs_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, num_classes = features.shape[0], class_weights.shape[0]
    return (
        features.new_empty(()),
        features.new_empty(num_classes),
        features.new_empty(batch if needs_gradient else 0),
        features.new_empty((batch, num_classes) if needs_gradient else 0),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    features, _, class_weights, *_ = inputs
    ctx.save_for_backward(features, class_weights, *output[1:])


def _backward(ctx: Any, upstream: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    features_BD, weights_CD, inverse_norm_C, row_B, columns_BC = ctx.saved_tensors
    row_B1 = (row_B * upstream)[:, None]
    features_gradient = weights_gradient = None
    with torch.autocast(features_BD.device.type, enabled=False):
        if ctx.needs_input_grad[0]:
            features_gradient = (columns_BC @ weights_CD).mul_(row_B1)
        if ctx.needs_input_grad[2]:
            weights_gradient = through_norm_(
                columns_BC.T @ (features_BD * row_B1), weights_CD, inverse_norm_C, unit=False
            )
    return features_gradient, None, weights_gradient, *[None] * 5


_operator.register_autograd(_backward, setup_context=_keep)

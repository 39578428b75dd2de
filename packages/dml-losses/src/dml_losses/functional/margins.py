"""Change logits before the cosine softmax: add margins at the true class, and keep the nearest
centres.

Shapes: `R` rows, `C` classes, `K` weights (centres) per class.
"""

from __future__ import annotations

import math

import torch


def apply_margin(
    target_R1: torch.Tensor, scale: float, angular_margin: float, cosine_margin: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the true class's logit s·φ(θ), and dφ/d(cos θ).

    Args:
        target_R1: s·cos θ, of any shape; rounding can make |cos θ| exceed 1.
        scale, angular_margin, cosine_margin: s, m₁ and m₂; see `cosine_softmax`.

    Returns:
        Both in the shape of `target_R1`. The slope is finite at θ = 0, although its limit isn't.
    """
    slope_R1 = torch.ones_like(target_R1)
    if angular_margin:
        cosine_R1 = (target_R1 / scale).clamp(-1, 1)
        sine_R1 = (1 - cosine_R1.square()).sqrt()
        cos_m, sin_m = math.cos(angular_margin), math.sin(angular_margin)
        inside_R1 = cosine_R1 > -cos_m  # θ + m₁ < π
        target_R1 = scale * torch.where(
            inside_R1, cosine_R1 * cos_m - sine_R1 * sin_m, cosine_R1 - angular_margin * sin_m
        )
        # The slope's limit at θ = 0 is infinite; use the slope at the smallest angle that the dtype
        # resolves.
        smallest = torch.finfo(target_R1.dtype).eps ** 0.5
        slope_R1 = (cos_m + sin_m * cosine_R1 / sine_R1.clamp_min(smallest)).where(inside_R1, 1)
    return target_R1 - scale * cosine_margin, slope_R1


def apply_row_margins(
    target_R1: torch.Tensor, scale: float, margins_R2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the true class's logit s·φ(θ), and dφ/d(cos θ), where φ(θ) = cos(θ + m₁) − m₂, with
    margins per row.

    Args:
        target_R1: (R, 1), s·cos θ; rounding can make |cos θ| exceed 1.
        scale: s.
        margins_R2: (R, 2), m₁ and m₂.

    Returns:
        Both (R, 1). If θ + m₁ is outside [0, π], it is clamped, and the slope is 0.
    """
    angle_R1, cosine_margin_R1 = margins_R2[:, :1], margins_R2[:, 1:]
    cosine_R1 = (target_R1 / scale).clamp(-1, 1)
    sine_R1 = (1 - cosine_R1.square()).sqrt()
    cos_m, sin_m = angle_R1.cos(), angle_R1.sin()
    below_R1 = (angle_R1 < 0) & (cosine_R1 > cos_m)
    beyond_R1 = (angle_R1 > 0) & (cosine_R1 < -cos_m)
    turned_R1 = (cosine_R1 * cos_m - sine_R1 * sin_m).where(~below_R1, 1).where(~beyond_R1, -1)
    smallest = torch.finfo(target_R1.dtype).eps ** 0.5  # see `apply_margin`
    slope_R1 = cos_m + sin_m * cosine_R1 / sine_R1.clamp_min(smallest)
    return scale * (turned_R1 - cosine_margin_R1), slope_R1.where(~(below_R1 | beyond_R1), 0)


def turn(cosine: torch.Tensor, angle: float) -> torch.Tensor:
    """Compute cos(θ + m) from cos θ in [−1, 1] and an angle m in radians; θ + m can exceed π."""
    # The gradient of √ at 0 is infinite; the floor is the smallest 1 − cos² above 0 that the dtype
    # resolves.
    sine = (1 - cosine.square()).clamp_min(torch.finfo(cosine.dtype).eps).sqrt()
    return cosine * math.cos(angle) - sine * math.sin(angle)


def modulate_hard_(
    logits: torch.Tensor, threshold_R1: torch.Tensor, progress: torch.Tensor, scale: float
) -> torch.Tensor:
    """Multiply the logits above a threshold by t + cos θ, in place, and return the slopes of all
    logits, (R, C).

    Args:
        logits: (R, C), s·cos θ.
        threshold_R1: cos(θ_y + m); see `curricular_face`.
        progress, scale: t and s.
    """
    hard_RC = logits > scale * threshold_R1
    cosine_RC = logits / scale
    logits.mul_(torch.where(hard_RC, progress + cosine_RC, 1))
    return torch.where(hard_RC, progress + 2 * cosine_RC, 1)


def keep_nearest_centers_(logits: torch.Tensor, centers_per_class: int) -> torch.Tensor:
    """Set a class's logits to −∞ except the highest, in place, so that other centres neither count
    nor move.

    Args:
        logits: (R, C·K), must be contiguous; the centres of a class are consecutive.
        centers_per_class: K.

    Returns:
        The nearest centres, (R, C) int64 in [0, K).
    """
    logits_RCK = logits.view(len(logits), -1, centers_per_class)
    nearest_RC = logits_RCK.argmax(dim=2)
    center_K = torch.arange(centers_per_class, device=logits.device)
    logits_RCK.masked_fill_(center_K != nearest_RC[..., None], -torch.inf)
    return nearest_RC

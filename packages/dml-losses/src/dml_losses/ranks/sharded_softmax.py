"""Softmax cross entropy whose classes are sharded over ranks: each has some rows of the class weights.

A rank computes the logits of its own classes alone, and holds one buffer of (B × C/W), which becomes the gradient
in place. Ranks exchange three numbers for each row of the batch: its true class's cosine, which one rank has, the
highest logit and the sum of exponentials; and backwards one number, the value's gradient.

Every rank needs the same features and labels, and gets the same value. The backward pass sums the ranks' shares of the
value's gradient (see `exchange`): each rank then has the gradient of its own class weights, and its own classes' part
of the features' gradient. These parts add up over the ranks.

Shapes: `B` batch, `L` class weights of this rank, `D` dim, `R` rows of a block, `O` rows whose true class this rank
has, `K` weights (centres) of a class.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid

from dml_losses.functional.cosine_softmax import rows_per_block
from dml_losses.functional.curricular_face import turn
from dml_losses.functional.margins import apply_margin, apply_row_margins, keep_nearest_centers_
from dml_losses.functional.sphere import inverse_norms, through_norm_
from dml_losses.ranks.exchange import all_reduce_


def sharded_softmax(
    features: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    first: int,
    scale: float,
    *,
    angular_margin: float = 0.0,
    cosine_margin: float = 0.0,
    positive_in_denominator: bool = True,
    normalised: bool = True,
    progress: torch.Tensor | None = None,
    row_margins: torch.Tensor | None = None,
    centers_per_class: int = 1,
) -> torch.Tensor:
    """Compute the mean cross entropy of a softmax over the classes of all ranks, with a margin at the true class.

    L = −mean_b log( e^{s·φ(θ_y)} / (e^{s·φ(θ_y)} + Σ_{c≠y} e^{s·ν(cos θ_c)}) ),  φ(θ) = cos(θ + m₁) − m₂

    where ν is the identity, or CurricularFace's modulation: cos θ_c·(t + cos θ_c) if cos θ_c > cos(θ_y + m₁).

    Source: `cosine_softmax`, also for φ past π, and `curricular_face` for ν. Sharding as in An et al. 2021, Partial FC,
    section 3.1; departure: the same value on any number of ranks, up to rounding.

    Args:
        features: (B, D) float32 or float64, normalised as the loss requires; the same on every rank.
        labels: (B,), integer among all ranks' classes; the same on every rank.
        class_weights: (L, D), of the features' dtype: this rank's rows; L may be 0. The centres of a class are
            consecutive.
        first: the class of the first row. The ranks' rows are consecutive.
        scale: s > 0.
        angular_margin, cosine_margin, positive_in_denominator: as in `cosine_softmax`.
        normalised: compare by cosines; if false, by inner products, without a margin.
        progress: t, a scalar, for CurricularFace's modulation.
        row_margins: (B, 2), as in `cosine_softmax`; the same on every rank.
        centers_per_class: K, as in `cosine_softmax`; it divides L. Without `progress`.

    Returns:
        The loss, a scalar of the features' dtype, the same on every rank; zero if there is one class.
    """
    value: torch.Tensor = _ShardedSoftmax.apply(
        features, class_weights, labels.long(), progress, first, scale, angular_margin, cosine_margin,
        positive_in_denominator, normalised, row_margins, centers_per_class,
    )  # fmt: skip
    return value


@torch.no_grad()
def true_cosines(
    features: torch.Tensor, labels: torch.Tensor, class_weights: torch.Tensor, first: int
) -> torch.Tensor:
    """Compute the cosine of each row with its true class, (B,), on every rank; arguments as `sharded_softmax`."""
    own_O, column_O = find_owned(labels, first, len(class_weights))
    return _true_products(features, class_weights, inverse_norms(class_weights), own_O, column_O)


class _ShardedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: torch.Tensor,
        class_weights: torch.Tensor,
        labels: torch.Tensor,
        progress: torch.Tensor | None,
        first: int,
        scale: float,
        angular_margin: float,
        cosine_margin: float,
        positive_in_denominator: bool,
        normalised: bool,
        row_margins: torch.Tensor | None,
        centers_per_class: int,
    ) -> torch.Tensor:
        batch, own_columns = len(features), len(class_weights)
        own_classes = own_columns // centers_per_class
        inverse_norm_L = inverse_norms(class_weights) if normalised else class_weights.new_ones(own_columns)
        own_O, column_O = find_owned(labels, first, own_classes)
        if centers_per_class > 1:
            column_O = _nearest_columns(
                features[own_O], class_weights, inverse_norm_L, column_O, centers_per_class
            )
        true_B = _true_products(features, class_weights, inverse_norm_L, own_O, column_O)
        if row_margins is None:
            target_B, slope_B = apply_margin(true_B * scale, scale, angular_margin, cosine_margin)
        else:
            target_B, slope_B = (
                part.squeeze(1) for part in apply_row_margins(true_B[:, None] * scale, scale, row_margins)
            )
        threshold_B = turn(true_B.clamp(-1, 1), angular_margin) if progress is not None else None

        columns_BL = features.new_empty(batch, own_columns)
        highest_B, total_B = features.new_full((batch,), -torch.inf), features.new_zeros(batch)
        step = rows_per_block(features.device, own_columns)
        center_K = torch.arange(centers_per_class, device=features.device)
        for start in range(0, batch if own_classes else 0, step):
            rows = slice(start, start + step)
            block_RL = columns_BL[rows]
            with torch.autocast(features.device.type, enabled=False):
                torch.mm(features[rows], class_weights.T, out=block_RL)
            block_RL.mul_(inverse_norm_L)
            slope_RL = None
            if progress is not None and threshold_B is not None:
                hard_RL = block_RL > threshold_B[rows, None]
                slope_RL = torch.where(hard_RL, progress + 2 * block_RL, 1)
                block_RL.mul_(torch.where(hard_RL, progress + block_RL, 1))
            block_RL.mul_(scale)
            if centers_per_class > 1:
                keep_nearest_centers_(block_RL, centers_per_class)
            # From here on the negatives alone. Rows whose true class is on another rank don't change.
            own_R1 = labels[rows, None] - first
            elsewhere_R1 = (own_R1 < 0) | (own_R1 >= own_classes)
            column_RK = own_R1.clamp(0, own_classes - 1) * centers_per_class + center_K
            block_RL.scatter_(1, column_RK, block_RL.gather(1, column_RK).where(elsewhere_R1, -torch.inf))
            highest_R1 = block_RL.amax(dim=1, keepdim=True)
            block_RL.sub_(highest_R1.where(highest_R1 > -torch.inf, 0)).exp_()  # no negatives: all become 0
            highest_B[rows], total_B[rows] = highest_R1.squeeze(1), block_RL.sum(dim=1)
            if slope_RL is not None:
                block_RL.mul_(slope_RL)
            block_RL.mul_(inverse_norm_L)

        top_B = all_reduce_(highest_B.clone(), distributed.ReduceOp.MAX)
        top_B = top_B.where(top_B > -torch.inf, 0)  # one class
        factor_B = (highest_B - top_B).exp()  # from this rank's highest logit to the highest of all ranks
        total_B = all_reduce_(total_B * factor_B)
        # 1 − p_y = σ(gap) and −log p_y = −log σ(−gap): no difference of nearly equal numbers.
        gap_B = top_B + total_B.log() - target_B
        if positive_in_denominator:
            value, push_B = -logsigmoid(-gap_B).sum() / batch, gap_B.sigmoid()
        else:
            value, push_B = gap_B.where(total_B != 0, 0).sum() / batch, (total_B != 0).to(gap_B.dtype)
        push_B *= scale / batch
        negative_B = push_B * factor_B / total_B.where(total_B > 0, 1)
        ctx.save_for_backward(
            features,
            class_weights,
            inverse_norm_L,
            columns_BL,
            negative_B,
            -push_B * slope_B,
            own_O,
            column_O,
        )
        ctx.normalised = normalised
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        features_BD, weights_LD, inverse_norm_L, columns_BL, negative_B, positive_B, own_O, column_O = (
            ctx.saved_tensors
        )
        upstream = all_reduce_(upstream.clone())
        positive_O1 = (positive_B[own_O] * inverse_norm_L[column_O] * upstream)[:, None]
        negative_B1 = (negative_B * upstream)[:, None]
        features_gradient_BD = weights_gradient_LD = None
        with torch.autocast(features_BD.device.type, enabled=False):
            if ctx.needs_input_grad[0]:
                features_gradient_BD = (columns_BL @ weights_LD).mul_(negative_B1)
                features_gradient_BD.index_add_(0, own_O, positive_O1 * weights_LD[column_O])
            if ctx.needs_input_grad[1]:
                weights_gradient_LD = columns_BL.T @ (features_BD * negative_B1)
                weights_gradient_LD.index_add_(0, column_O, positive_O1 * features_BD[own_O])
                if ctx.normalised:
                    through_norm_(weights_gradient_LD, weights_LD, inverse_norm_L, unit=False)
        return features_gradient_BD, weights_gradient_LD, *[None] * 10


def find_owned(labels_B: torch.Tensor, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the rows whose true class this rank has, (O,), and the class's column on this rank, (O,)."""
    column_B = labels_B.long() - first
    own_O = ((column_B >= 0) & (column_B < count)).nonzero().squeeze(1)
    return own_O, column_B[own_O]


def _nearest_columns(
    features_OD: torch.Tensor,
    class_weights: torch.Tensor,
    inverse_norm_L: torch.Tensor,
    class_O: torch.Tensor,
    centers_per_class: int,
) -> torch.Tensor:
    """Find the column of each row's nearest centre of its true class, (O,); `class_O` counts this rank's classes."""
    column_OK = class_O[:, None] * centers_per_class + torch.arange(centers_per_class, device=class_O.device)
    cosine_OK = (class_weights[column_OK] @ features_OD[:, :, None]).squeeze(2) * inverse_norm_L[column_OK]
    return column_OK.gather(1, cosine_OK.argmax(dim=1, keepdim=True)).squeeze(1)


def _true_products(
    features: torch.Tensor,
    class_weights: torch.Tensor,
    inverse_norm_L: torch.Tensor,
    own_O: torch.Tensor,
    column_O: torch.Tensor,
) -> torch.Tensor:
    """Compute each row's product with its true class, (B,), on every rank."""
    true_B = features.new_zeros(len(features))
    true_B[own_O] = (features[own_O] * class_weights[column_O]).sum(dim=1) * inverse_norm_L[column_O]
    return all_reduce_(true_B)

"""Instance cross entropy: a softmax of each positive against the negatives of its anchor.

Shapes: `B` batch (the anchors), `G` gallery, `D` dim, `R` anchors per block, `P` columns that can
contain positives.
"""

from __future__ import annotations

import torch

from dml_losses.functional.pair_operators import pair_operator
from dml_losses.functional.pairs import Block


def instance_cross_entropy(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    gallery: torch.Tensor | None = None,
    gallery_labels: torch.Tensor | None = None,
    *,
    scale: float = 64.0,
    reweight: bool = True,
    anchor_gradient: bool = False,
) -> torch.Tensor:
    """Compute the cross entropy of each positive in a softmax over this positive and the anchor's
    negatives.

    L = −1/|P| · Σ_{(a,i) ∈ P} log p̂(i|a),
    p̂(i|a) = exp(s·f_aᵀf_i) / (exp(s·f_aᵀf_i) + Σ_{j: y_j ≠ y_a} exp(s·f_aᵀf_j))

    where f are L2-normalised embeddings, and P (anchor, positive) pairs. A denominator excludes the
    other positives.

    With `reweight`, the gradient isn't L's derivative, but Σ_a (Σ_j w̄_j f_a − Σ_i w̄_i f_a), with
    constant weights

    w̄_i = 1/(2N) · (1 − p̂(i|a)) / Σ_i (1 − p̂(i|a)),  w̄_j = 1/(2N) · Σ_i p̂(j|a,i) / Σ_i (1 − p̂(i|a))

    Source: Instance Cross Entropy for Deep Metric Learning, Eq. 3-6 and 11-12 (the value) and 13-15
    (the gradient); there is no published code. Departures: the value is the mean over pairs instead
    of the sum in Eq. 5, so that it doesn't grow with the batch; it uses the scale s, like the
    probabilities that weight the gradient. Eq. 15 only has gradients for positives and negatives,
    so the anchor is a constant; but if the gallery doesn't take a gradient (a memory), only the
    anchor moves. N counts all anchors; anchors without a positive or a negative have zero weights.

    Args:
        embeddings, labels, gallery, gallery_labels: see `dml_losses.functional`. All rows are
            anchors.
        scale: s > 0, the inverse temperature; default 64, as in the paper (16 to 64 work, 1 doesn't
            train, 80 is worse).
        reweight: use the gradient of Eq. 13-15. If false, use the derivative of L, which also moves
            anchors.
        anchor_gradient: also let the weights of Eq. 13-14 move the anchor. Only used with
            `reweight`.

    Returns:
        The loss, a scalar; zero, with a zero gradient, without positive pairs. Anchors without
        negatives add zero.
    """
    # `_loss` raises an error if the gallery isn't a tensor.
    gallery_moves = not isinstance(gallery, torch.Tensor) or gallery.requires_grad
    return _loss(
        embeddings,
        labels,
        gallery,
        gallery_labels,
        scale,
        reweight,
        moves_query=anchor_gradient or not reweight or not gallery_moves,
    )


def _terms(block: Block, scale: float, reweight: bool) -> torch.Tensor:
    logits_RG = block.similarity.mul_(scale)
    positive_logits_RP = logits_RG[:, block.columns].clone()
    logits_RG[:, block.columns].masked_fill_(block.same, -torch.inf)

    # Compute exp and log-sum-exp over the negatives. If an anchor has no negatives, its maximum is
    # −inf, and −inf − (−inf) would be NaN. If zero is used instead, exp(−inf − 0) = 0 and log 0 =
    # −inf.
    highest_R1 = logits_RG.amax(dim=1, keepdim=True)
    highest_R1 = highest_R1.where(highest_R1 > -torch.inf, 0)
    exp_RG = logits_RG.sub_(highest_R1).exp_()
    total_R1 = exp_RG.sum(dim=1, keepdim=True)
    negatives_R1 = highest_R1 + total_R1.log()

    # Use 1 − p̂ = σ(gap) and −log p̂ = −log σ(−gap) to avoid the difference of nearly equal numbers.
    gap_RP = negatives_R1 - positive_logits_RP
    log1p_RP = gap_RP.abs().neg_().exp_().log1p_()  # log σ(x) = min(x, 0) − log(1 + e^{−|x|})
    value = (gap_RP.clamp_min(0) + log1p_RP).where(block.positive, 0).sum() / block.num_pairs

    if reweight:
        # Eq. 13 is a softmax of log(1 − p̂) over the positives, which is accurate even if all 1 − p̂
        # underflow. Eq. 14 is a softmax of the logits over the negatives, since Σ_i (1 − p̂_i)
        # cancels.
        weight_RP = _softmax_or_zero(
            (gap_RP.clamp_max(0) - log1p_RP).where(block.positive, -torch.inf)
        ).div_(-2 * block.num_queries)
        negative_weight_R1 = (block.num_positives > 0).to(total_R1.dtype)[:, None] / (
            2 * block.num_queries
        )
    else:
        weight_RP = gap_RP.sigmoid().where(block.positive, 0).mul_(-scale / block.num_pairs)
        negative_weight_R1 = -weight_RP.sum(dim=1, keepdim=True)
    exp_RG.mul_(negative_weight_R1 / total_R1.where(total_R1 > 0, 1))
    exp_RG[:, block.columns] += weight_RP  # the values were zero for pairs with the same label
    return value


def _softmax_or_zero(x_RP: torch.Tensor) -> torch.Tensor:
    """Compute the softmax of each row, or zeros if all values of a row are −inf."""
    some_R1 = (x_RP > -torch.inf).any(dim=1, keepdim=True)
    return x_RP.where(some_R1, 0).softmax(dim=1).where(some_R1, 0)


_loss = pair_operator("instance_cross_entropy", "float scale, bool reweight", _terms)

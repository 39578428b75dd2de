"""Instance cross entropy: a softmax of each positive against the negatives of its anchor.

Shapes: `B` batch (the anchors), `G` gallery, `D` dim, `R` anchors of a block, `P` columns that may hold positives.
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
    """Compute the cross entropy of matching each anchor with each of its positives among the anchor's negatives.

    L = −1/|P| · Σ_{(a,i) ∈ P} log p̂(i|a),  p̂(i|a) = exp(s·f_aᵀf_i) / (exp(s·f_aᵀf_i) + Σ_{j: y_j ≠ y_a} exp(s·f_aᵀf_j))

    where f are the L2-normalised embeddings and P the (anchor, positive) pairs. No denominator contains the anchor's
    other positives.

    With `reweight` the gradient is not that of L: it is Σ_a (Σ_j w̄_j f_a − Σ_i w̄_i f_a), with constant weights

    w̄_i = 1/(2N) · (1 − p̂(i|a)) / Σ_i (1 − p̂(i|a)),  w̄_j = 1/(2N) · Σ_i p̂(j|a,i) / Σ_i (1 − p̂(i|a))

    Source: Instance Cross Entropy for Deep Metric Learning, Eq. 3-6 and 11-12 (the value) and 13-15 (the
    gradient); there is no published code. Departures: the value is the mean over pairs, not the sum of Eq. 5, so that
    it doesn't grow with the batch; it has the scale s, like the probabilities that weight the gradient. Eq. 15 gives
    the gradients of positives and negatives only, so the anchor is constant, unless the gallery takes no gradient (a
    memory): then the anchor alone moves, since otherwise nothing would. N counts all anchors, also those without a
    positive or a negative, whose weights are zero.

    Args:
        embeddings, labels, gallery, gallery_labels: see `dml_losses.functional`. Every row is an anchor.
        scale: s > 0, the inverse temperature. The paper uses 64 (16 to 64 work, 1 doesn't train, 80 is worse).
        reweight: use the gradient of Eq. 13-15; if false, the derivative of L, in which anchors move too.
        anchor_gradient: let the weights of Eq. 13-14 move the anchor as well. Only matters with `reweight`.

    Returns:
        The loss, a scalar. Zero, with a zero gradient, if there are
        no positive pairs; a pair whose anchor has no negatives adds zero.
    """
    # `_loss` refuses a gallery that is no tensor.
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

    # exp and log-sum-exp over the negatives. An anchor without negatives has the maximum −inf; zero in its place gives
    # exp(−inf − 0) = 0 and log 0 = −inf, whereas −inf − (−inf) would be NaN.
    highest_R1 = logits_RG.amax(dim=1, keepdim=True)
    highest_R1 = highest_R1.where(highest_R1 > -torch.inf, 0)
    exp_RG = logits_RG.sub_(highest_R1).exp_()
    total_R1 = exp_RG.sum(dim=1, keepdim=True)
    negatives_R1 = highest_R1 + total_R1.log()

    # 1 − p̂ = σ(gap) and −log p̂ = −log σ(−gap): no difference of nearly equal numbers.
    gap_RP = negatives_R1 - positive_logits_RP
    log1p_RP = gap_RP.abs().neg_().exp_().log1p_()  # log σ(x) = min(x, 0) − log(1 + e^{−|x|})
    value = (gap_RP.clamp_min(0) + log1p_RP).where(block.positive, 0).sum() / block.num_pairs

    if reweight:
        # Eq. 13 is a softmax of log(1 − p̂) over the positives: accurate even where every 1 − p̂ underflows.
        # Eq. 14 is a softmax of the logits over the negatives: Σ_i (1 − p̂_i) cancels.
        weight_RP = _softmax_or_zero((gap_RP.clamp_max(0) - log1p_RP).where(block.positive, -torch.inf)).div_(
            -2 * block.num_queries
        )
        negative_weight_R1 = (block.num_positives > 0).to(total_R1.dtype)[:, None] / (2 * block.num_queries)
    else:
        weight_RP = gap_RP.sigmoid().where(block.positive, 0).mul_(-scale / block.num_pairs)
        negative_weight_R1 = -weight_RP.sum(dim=1, keepdim=True)
    exp_RG.mul_(negative_weight_R1 / total_R1.where(total_R1 > 0, 1))
    exp_RG[:, block.columns] += weight_RP  # pairs of the same label had zeros there
    return value


def _softmax_or_zero(x_RP: torch.Tensor) -> torch.Tensor:
    """Compute the softmax of each row; zeros for a row of −inf alone."""
    some_R1 = (x_RP > -torch.inf).any(dim=1, keepdim=True)
    return x_RP.where(some_R1, 0).softmax(dim=1).where(some_R1, 0)


_loss = pair_operator("instance_cross_entropy", "float scale, bool reweight", _terms)

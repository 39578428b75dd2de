"""SupCon: supervised contrastive loss.

Shapes: `B` batch (the anchors), `G` gallery, `D` dim, `R` anchors per block, `P` columns that can
contain positives.
"""

from __future__ import annotations

import torch

from dml_losses.functional.pair_operators import pair_operator
from dml_losses.functional.pairs import Block


def sup_con(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    gallery: torch.Tensor | None = None,
    gallery_labels: torch.Tensor | None = None,
    *,
    temperature: float = 0.1,
) -> torch.Tensor:
    """Compute the cross entropy of a softmax over all rows, averaged over an anchor's positives.

    L = mean_a −1/|P_a| · Σ_{i ∈ P_a} log( exp(s_ai/τ) / Σ_{j≠a} exp(s_aj/τ) )

    where s are cosines, P_a are the anchor's positives, and j runs over all rows (also positives)
    except the anchor.

    Source: Khosla et al. 2020, Supervised Contrastive Learning, its L_out. Departure: the mean over
    the anchors that have a positive, instead of the sum over all anchors.

    Args:
        embeddings, labels, gallery, gallery_labels: see `dml_losses.functional`. All rows are
            anchors.
        temperature: τ > 0; default 0.1, as in the paper.

    Returns:
        The loss, a scalar; zero, with a zero gradient, if no anchor has a positive.
    """
    return _loss(embeddings, labels, gallery, gallery_labels, temperature)


def cross_entropy(block: Block, temperature: float | torch.Tensor) -> torch.Tensor:
    """Compute a block's share of the loss, and overwrite its similarities with the derivatives."""
    logits_RG = block.similarity.div_(temperature)
    logits_RG[:, block.columns].masked_fill_(
        block.same & ~block.positive, -torch.inf
    )  # the anchor itself
    positive_RP = logits_RG[:, block.columns].clone()

    highest_R1 = logits_RG.amax(dim=1, keepdim=True)
    highest_R1 = highest_R1.where(highest_R1 > -torch.inf, 0)  # −inf if there are no other rows
    exp_RG = logits_RG.sub_(highest_R1).exp_()
    total_R1 = exp_RG.sum(dim=1, keepdim=True)
    matched_R1 = (block.num_positives > 0)[:, None]
    share_R1 = matched_R1 / (
        block.num_positives[:, None].clamp_min(1) * block.num_matched.clamp_min(1)
    )
    surprise_RP = (highest_R1 + total_R1.log() - positive_RP).where(block.positive, 0)
    value = (surprise_RP * share_R1).sum()

    exp_RG.mul_(
        matched_R1
        / (total_R1.where(total_R1 > 0, 1) * block.num_matched.clamp_min(1) * temperature)
    )
    exp_RG[:, block.columns] -= (share_R1 / temperature).where(block.positive, 0)
    return value


_loss = pair_operator("sup_con", "float temperature", cross_entropy)

"""SigLIP: every pair is a binary decision, with a learned scale and bias.

Shapes: `B` batch, `G` gallery, `D` dim, `R` queries per block, `P` columns that can contain
positives.
"""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid

from dml_losses.functional.pair_operators import pair_operator
from dml_losses.functional.pairs import Block
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

    Source: Zhai et al. 2023, Sigmoid Loss for Language Image Pre-Training. Departure: there is only
    one kind of row, so a batch is paired with itself (or with a gallery), and all rows of a class
    are positives for each other.

    Args:
        embeddings, labels, gallery, gallery_labels: see `dml_losses.functional`.
        log_scale: t', a floating scalar; it starts at log 10 in the paper.
        bias: b, a floating scalar; it starts at −10 in the paper, since most pairs are negative.
        over_ranks: compute 1/W of the pairs of a batch and gallery that all ranks have. Ranks
            exchange three numbers per block of queries, and the full gradients (B, D) and (G, D).
            The number of ranks can't change a bit of the value or the embeddings' gradient, if all
            ranks have the same kind of device and number of threads; it changes the rounding of the
            gallery's gradient, which is a sum over ranks.

    Returns:
        The loss, a scalar; zero, with a zero gradient, if there is no pair.
    """
    learned = full_precision(torch.stack((log_scale, bias)))
    return _loss(embeddings, labels, gallery, gallery_labels, learned, over_ranks)


def _terms(block: Block, learned: torch.Tensor) -> torch.Tensor:
    """Compute a block's share of the value, and of the derivatives with respect to t' and b,
    (3,).
    """
    scale, bias = learned[0].exp(), learned[1]
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


_loss = pair_operator(
    "siglip", "Tensor learned, bool over_ranks", _terms, symmetric=True, num_learned=2
)
